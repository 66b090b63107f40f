# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The factorised path of the host's graph-transformer blocks: their edge projection goes into the attention.

The host projects the attributes of the edges, ``[M, A]``, to ``[M, heads * C]``, and hands the result from method to
method. Here :class:`FactorisedEdges` takes its place: the same methods pass the attributes on, with the projection's
weight and bias.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import einops
import torch.distributed
from torch import Tensor
from torch import nn

from ..errors import UnsupportedProblem
from .graph_attention_module import FactorisedEdges
from .graph_attention_module import GraphAttentionModule

# The methods that edges pass through, with the parameters they must have; older releases have others.
_SEAMS = {
    "get_qkve": ("self", "x", "edge_attr"),
    "prepare_qkve_edge_sharding": ("self", "query", "key", "value", "edges"),
    "shard_qkve_heads": ("self", "query", "key", "value", "edges", "shard_info", "batch_size", "model_comm_group"),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def seams_of(block_class: Any) -> dict[str, Callable[..., Any]]:
    """Return the replacements of the methods that edges pass through.

    Empty for a release of the host whose methods are not the known ones: there the edges are projected.
    """
    for name, parameters in _SEAMS.items():
        method = getattr(block_class, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            return {}
    return {
        "get_qkve": _get_qkve(block_class.get_qkve),
        "prepare_qkve_edge_sharding": _prepare_qkve(block_class.prepare_qkve_edge_sharding),
        "shard_qkve_heads": _shard_qkve_heads(block_class.shard_qkve_heads),
    }


def can_be_factorised(projection: nn.Module) -> bool:
    """Whether an edge projection is ``attributes @ weight.T + bias`` and nothing more.

    Subclasses, parametrisations (which are subclasses, too), adapters such as LoRA, hooks and a replaced ``forward``
    may do something else: their result is taken as it comes.
    """
    return (
        type(projection) is nn.Linear
        and "forward" not in vars(projection)
        and not any(getattr(projection, hooks) for hooks in _HOOKS)
    )


def _get_qkve(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_qkve(self: Any, x: Tensor | tuple[Tensor, Tensor], edge_attr: Tensor) -> tuple[Any, ...]:
        if not (isinstance(self.conv, GraphAttentionModule) and can_be_factorised(self.lin_edge)):
            return original(self, x, edge_attr)
        x_src, x_dst = x if isinstance(x, tuple) else (x, x)
        edges = FactorisedEdges(self.edge_pre_mlp(edge_attr), self.lin_edge.weight, self.lin_edge.bias)
        return self.lin_query(x_dst), self.lin_key(x_src), self.lin_value(x_src), edges

    return get_qkve


def _prepare_qkve(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare_qkve_edge_sharding(
        self: Any, query: Tensor, key: Tensor, value: Tensor, edges: Tensor | FactorisedEdges
    ) -> tuple[Any, ...]:
        if not isinstance(edges, FactorisedEdges):
            return original(self, query, key, value, edges)
        # The host's method takes four tensors, and makes views of them: the fourth costs nothing.
        return *original(self, query, key, value, value)[:3], edges

    return prepare_qkve_edge_sharding


def _shard_qkve_heads(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def shard_qkve_heads(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edges: Tensor | FactorisedEdges,
        shard_info: Any,
        batch_size: int,
        model_comm_group: Any = None,
    ) -> tuple[Any, ...]:
        if model_comm_group is not None and model_comm_group.size() > 1 and batch_size > 1:
            raise UnsupportedProblem(
                f"A graph-transformer layer sharded over {model_comm_group.size()} processes got batch_size="
                f"{batch_size}. Allowed: 1. Use a batch size of 1, or one process a model "
                "(num_gpus_per_model: 1)."
            )
        if not isinstance(edges, FactorisedEdges):
            return original(self, query, key, value, edges, shard_info, batch_size, model_comm_group)
        return _sharded(self, (query, key, value), edges, shard_info, batch_size, model_comm_group)

    return shard_qkve_heads


def _sharded(
    block: Any,
    nodes: tuple[Tensor, Tensor, Tensor],
    edges: FactorisedEdges,
    shard_info: Any,
    batch_size: int,
    group: Any,
) -> tuple[Any, ...]:
    """Exchange a part of the nodes with all heads for all nodes with a part of the heads.

    Of the edges, each process needs all attributes, and the rows of the projection for its heads. Gradients of the
    attributes are summed over the group here. Those of weight and bias are zero outside these rows, and the trainer
    sums them over the group, as it does for the host's, which come from a part of the edges.
    """
    from anemoi.models.distributed.graph import all_to_all_transpose
    from anemoi.models.distributed.graph import sync_tensor
    from anemoi.models.distributed.shapes import get_shard_sizes

    pattern = "(batch grid) (heads vars) -> batch heads grid vars"
    query, key, value = (
        einops.rearrange(t, pattern, heads=block.num_heads, vars=block.out_channels_conv, batch=batch_size)
        for t in nodes
    )
    head_sizes = get_shard_sizes(query, -3, group)
    query, key, value = (
        einops.rearrange(
            all_to_all_transpose(t, -3, head_sizes, -2, sizes, group),
            "batch heads grid vars -> (batch grid) heads vars",
        )
        for t, sizes in (
            (query, shard_info.dst_nodes),
            (key, shard_info.src_nodes),
            (value, shard_info.src_nodes),
        )
    )
    if head_sizes is not None and group is not None and group.size() > 1:
        rank = torch.distributed.get_rank(group=group)
        first = sum(head_sizes[:rank]) * block.out_channels_conv
        rows = slice(first, first + head_sizes[rank] * block.out_channels_conv)
        edges = FactorisedEdges(
            sync_tensor(edges.attributes, 0, shard_info.edges, group),
            edges.weight[rows],
            None if edges.bias is None else edges.bias[rows],
        )
    return query, key, value, edges, head_sizes
