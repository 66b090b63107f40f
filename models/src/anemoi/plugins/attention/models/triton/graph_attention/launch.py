# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""From tensors to kernel launches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

import torch
from torch import Tensor

from ...graph.layout import SEGMENT
from . import configurations
from .backward_attributes import _graph_attention_bwd_attributes_kernel
from .backward_destination import _graph_attention_bwd_destination_kernel
from .backward_source import _graph_attention_bwd_source_kernel
from .backward_source import _sum_segments_kernel
from .forward import _graph_attention_fwd_kernel

_SUM_BLOCK = 256
_ATTRIBUTE_EDGES = 16
_MAX_HEADS = 16
# A thread loads 16 bytes at once; the 16 attributes of the smallest tile go to at most 16 threads.
_LOAD_BYTES = 16
_MAX_LANES = 16
_NO_LIMIT = 2**31 - 1


class Graph(NamedTuple):
    """The index tensors of a ``GraphLayout``, as its ``tensors`` lists them; int32, or int64 for huge graphs."""

    destination_offsets: Tensor
    source: Tensor
    destination: Tensor
    edge_row: Tensor
    source_offsets: Tensor
    source_edge: Tensor
    source_destination: Tensor
    segment_begin: Tensor
    segment_end: Tensor
    hub: Tensor
    hub_offsets: Tensor


@dataclass(frozen=True)
class Options:
    """What a graph attention needs beyond its tensors.

    Parameters
    ----------
    max_in_degree, max_out_degree : int
        Most edges that one destination and one source has.
    scale : float
        Factor on the scores.
    """

    max_in_degree: int
    max_out_degree: int
    scale: float


class Edges(NamedTuple):
    """Edges as they are given: projected ``[M, H, C]``, or attributes ``[M, A]`` with weight and bias.

    Parameters
    ----------
    rows : Tensor
        ``[M, H, C]`` or ``[M, A]``.
    weight, bias : Tensor or None
        ``[H * C, A]`` and ``[H * C]``, contiguous, for attributes.
    """

    rows: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None

    @property
    def factorised(self) -> bool:
        """Whether the rows are attributes."""
        return self.weight is not None


class Gradients(NamedTuple):
    """Where the pass by destination writes.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]``.
    edges : Tensor or None
        ``[M, H, C]``; None for attributes, or if unwanted.
    weights, scores : Tensor
        ``[H, M]``, fp32.
    projected : pair of Tensor or None
        ``[N_dst, H, A]`` each, if the gradient of attributes is wanted.
    weight_shares : Tensor or None
        ``[P, H, C, A + 1]``, fp32, for attributes; the last column is the bias.
    """

    query: Tensor
    edges: Tensor | None
    weights: Tensor
    scores: Tensor
    projected: tuple[Tensor, Tensor] | None = None
    weight_shares: Tensor | None = None


@dataclass(frozen=True)
class Call:
    """A kernel with its grid and arguments, not launched yet."""

    kernel: Any
    grid: int
    arguments: dict[str, Any]
    constants: dict[str, Any]
    launch_options: dict[str, int]

    def launch(self, device: torch.device) -> None:
        """Run the kernel on the device of its tensors, whichever is current."""
        if self.grid == 0:
            return
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[(self.grid,)](**self.arguments, **self.constants, **self.launch_options)


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor itself where the kernels can read it, a contiguous copy otherwise.

    Readable are rows of contiguous numbers, at any distance from each other.
    """
    inner = tensor[:1].is_contiguous() if tensor.shape[0] else True
    return tensor if inner and (tensor.stride(0) > 0 or tensor.shape[0] <= 1) else tensor.contiguous()


def forward_call(
    query: Tensor, key: Tensor, value: Tensor, edges: Edges, out: Tensor, graph: Graph, options: Options
) -> Call:
    """Prepare the forward kernel, which writes ``out`` ``[N_dst, H, C]``."""
    config = configurations.configuration("forward", query.dtype, query.shape[2], factorised=edges.factorised)
    single = options.max_in_degree <= config.block_e
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "edges_ptr": edges.rows,
        "weight_ptr": edges.weight,
        "bias_ptr": edges.bias,
        "out_ptr": out,
        **_by_destination(graph),
        **_strides(query=query, key=key, value=value, edges=edges.rows),
        "attributes_stride": edges.rows.stride(0),
        "num_nodes": query.shape[0],
        "scale": options.scale,
    }
    constants = {
        **_constants(query, edges, config, single),
        "PERMUTED": graph.edge_row.numel() > 0,
        "FACTORISED": edges.factorised,
    }
    return _call(_graph_attention_fwd_kernel, arguments, constants, config, _groups(query, config, single))


def backward_destination_call(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Edges,
    gradients: Gradients,
    graph: Graph,
    options: Options,
) -> Call:
    """Prepare the kernel that writes ``gradients``, to be allocated with ``num_shares``."""
    config, single, groups = _destination_plan(query, edges, options)
    projected = gradients.projected or (None, None)
    arguments = {
        "d_out_ptr": d_out,
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "edges_ptr": edges.rows,
        "weight_ptr": edges.weight,
        "d_query_ptr": gradients.query,
        "d_edges_ptr": gradients.edges,
        "weights_ptr": gradients.weights,
        "d_scores_ptr": gradients.scores,
        "query_projected_ptr": projected[0],
        "d_out_projected_ptr": projected[1],
        "d_weight_ptr": gradients.weight_shares,
        **_by_destination(graph),
        **_strides(d_out=d_out, query=query, key=key, value=value, edges=edges.rows),
        "attributes_stride": edges.rows.stride(0),
        "num_nodes": query.shape[0],
        "num_edges": edges.rows.shape[0],
        "scale": options.scale,
    }
    constants = {
        **_constants(query, edges, config, single),
        "PERMUTED": graph.edge_row.numel() > 0,
        "FACTORISED": edges.factorised,
        "D_EDGES": gradients.edges is not None or gradients.projected is not None,
    }
    return _call(_graph_attention_bwd_destination_kernel, arguments, constants, config, groups)


def num_shares(query: Tensor, edges: Edges, options: Options) -> int:
    """Programs of each head among which the pass by destination divides the factorised weight's gradient."""
    config, _, groups = _destination_plan(query, edges, options)
    return _programs(query.shape[0], config, groups)


def backward_source_calls(
    d_out: Tensor,
    query: Tensor,
    gradients: Gradients,
    d_key: Tensor,
    d_value: Tensor,
    graph: Graph,
    options: Options,
) -> list[Call]:
    """Prepare the kernels that write ``d_key`` and ``d_value`` from what the pass by destination left."""
    offsets = graph.source_offsets
    calls = [_source_call(d_out, query, gradients, d_key, d_value, offsets[:-1], offsets[1:], graph, options)]
    if graph.hub.numel():
        shape = (graph.segment_begin.shape[0], *d_key.shape[1:])
        key_parts, value_parts = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
        begin, end = graph.segment_begin, graph.segment_end
        calls.append(_source_call(d_out, query, gradients, key_parts, value_parts, begin, end, graph, options))
        calls.append(_sum_call(key_parts, value_parts, d_key, d_value, graph))
    return calls


def backward_attributes_call(gradients: Gradients, d_attributes: Tensor, graph: Graph) -> Call:
    """Prepare the kernel that writes ``d_attributes`` ``[M, A]`` from what the pass by destination left."""
    assert gradients.projected is not None
    num_edges, num_attributes = d_attributes.shape
    num_heads = gradients.query.shape[1]
    arguments = {
        "weights_ptr": gradients.weights,
        "d_scores_ptr": gradients.scores,
        "query_projected_ptr": gradients.projected[0],
        "d_out_projected_ptr": gradients.projected[1],
        "d_attributes_ptr": d_attributes,
        "destination_ptr": graph.destination,
        "edge_row_ptr": graph.edge_row,
        "num_edges": num_edges,
    }
    block_a = configurations.block_size(num_attributes)
    constants = {
        "NUM_HEADS": num_heads,
        "NUM_ATTRIBUTES": num_attributes,
        "EDGES": _ATTRIBUTE_EDGES,
        "HEADS": min(1 << (num_heads - 1).bit_length(), max(1, _MAX_HEADS * 16 // block_a)),
        "BLOCK_A": block_a,
        "PERMUTED": graph.edge_row.numel() > 0,
    }
    grid = -(-num_edges // _ATTRIBUTE_EDGES)
    options = {"num_warps": 4, "num_stages": 1}
    return Call(_graph_attention_bwd_attributes_kernel, grid, arguments, constants, options)


def _source_call(
    d_out: Tensor,
    query: Tensor,
    gradients: Gradients,
    d_key: Tensor,
    d_value: Tensor,
    begin: Tensor,
    end: Tensor,
    graph: Graph,
    options: Options,
) -> Call:
    config = configurations.configuration("backward_source", query.dtype, query.shape[2])
    single = options.max_out_degree <= config.block_e
    num_heads, head_dim = query.shape[1:]
    arguments = {
        "d_out_ptr": d_out,
        "query_ptr": query,
        "weights_ptr": gradients.weights,
        "d_scores_ptr": gradients.scores,
        "d_key_ptr": d_key,
        "d_value_ptr": d_value,
        "begin_ptr": begin,
        "end_ptr": end,
        "edge_ptr": graph.source_edge,
        "destination_ptr": graph.source_destination,
        **_strides(d_out=d_out, query=query),
        "num_nodes": d_key.shape[0],
        "num_edges": graph.source.shape[0],
        "split_above": SEGMENT if graph.hub.numel() else _NO_LIMIT,
    }
    constants = {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "NODES": config.nodes,
        "HEADS": config.heads,
        "BLOCK_E": config.block_e,
        "BLOCK_C": configurations.block_size(head_dim),
        "STAGES": 1 if single else config.num_stages,
        "SINGLE": single,
    }
    groups = _groups(d_key, config, single)
    return _call(_graph_attention_bwd_source_kernel, arguments, constants, config, groups)


def _sum_call(d_key_parts: Tensor, d_value_parts: Tensor, d_key: Tensor, d_value: Tensor, graph: Graph) -> Call:
    width = d_key.shape[1] * d_key.shape[2]
    arguments = {
        "d_key_parts_ptr": d_key_parts,
        "d_value_parts_ptr": d_value_parts,
        "d_key_ptr": d_key,
        "d_value_ptr": d_value,
        "hub_ptr": graph.hub,
        "hub_offsets_ptr": graph.hub_offsets,
    }
    constants = {"WIDTH": width, "BLOCK": _SUM_BLOCK}
    grid = graph.hub.shape[0] * -(-width // _SUM_BLOCK)
    return Call(_sum_segments_kernel, grid, arguments, constants, {"num_warps": 4, "num_stages": 1})


def _destination_plan(query: Tensor, edges: Edges, options: Options) -> tuple[configurations.Configuration, bool, int]:
    config = configurations.configuration(
        "backward_destination", query.dtype, query.shape[2], factorised=edges.factorised
    )
    single = options.max_in_degree <= config.block_e
    return config, single, _groups(query, config, single, accumulates=edges.factorised)


def _groups(nodes: Tensor, config: configurations.Configuration, single: bool, *, accumulates: bool = False) -> int:
    tiles, head_blocks = -(-nodes.shape[0] // config.nodes), -(-nodes.shape[1] // config.heads)
    return configurations.groups(tiles, head_blocks, single=single, accumulates=accumulates)


def _programs(num_nodes: int, config: configurations.Configuration, groups: int) -> int:
    return -(-num_nodes // (config.nodes * groups))


def _by_destination(graph: Graph) -> dict[str, Tensor]:
    return {
        "offsets_ptr": graph.destination_offsets,
        "source_ptr": graph.source,
        "edge_row_ptr": graph.edge_row,
    }


def _strides(**tensors: Tensor) -> dict[str, int]:
    return {f"{name}_stride": tensor.stride(0) for name, tensor in tensors.items()}


def _constants(query: Tensor, edges: Edges, config: configurations.Configuration, single: bool) -> dict[str, Any]:
    num_heads, head_dim = query.shape[1:]
    num_attributes = edges.rows.shape[1] if edges.factorised else 1
    block_c = configurations.block_size(head_dim)
    lanes = min(_MAX_LANES, block_c * query.itemsize // _LOAD_BYTES)
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "NUM_ATTRIBUTES": num_attributes,
        "NODES": config.nodes,
        "HEADS": config.heads,
        "BLOCK_E": config.block_e,
        "BLOCK_C": block_c,
        "PARTS": configurations.block_size(num_attributes + 1) // lanes,
        "LANES": lanes,
        "STAGES": 1 if single else config.num_stages,
        "SINGLE": single,
    }


def _call(
    kernel: Any,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    config: configurations.Configuration,
    groups: int,
) -> Call:
    head_blocks = -(-constants["NUM_HEADS"] // config.heads)
    grid = _programs(arguments["num_nodes"], config, groups) * head_blocks
    options = {"num_warps": config.num_warps, "num_stages": 1}
    return Call(kernel, grid, {**arguments, "groups": groups}, constants, options)
