# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The module that a graph-transformer block calls for its attention."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import nn

from ..attention_backends.graph_transformer.triton_attention import TritonGraphAttentionBackend
from ..graph.cache import RecentLayouts
from ..graph.cache import layout_of
from ..graph.layout import GraphLayout

NAME = TritonGraphAttentionBackend.name
_BACKEND = TritonGraphAttentionBackend()

_MODULES: weakref.WeakSet[GraphAttentionModule] = weakref.WeakSet()


@dataclass
class FactorisedEdges:
    """Edges as the attention takes them without storing their projection.

    Parameters
    ----------
    attributes : Tensor
        ``[M, A]``, the inputs of the edge projection.
    weight : Tensor
        ``[H * C, A]``, for the heads that this process computes.
    bias : Tensor or None
        ``[H * C]``.
    """

    attributes: Tensor
    weight: Tensor
    bias: Tensor | None


class GraphAttentionModule(nn.Module):
    """The backend ``triton_attention`` behind the call of the host's ``GraphTransformerConv``.

    It holds no weights. It is pickled as the host's ``GraphTransformerConv``, so that a checkpoint opens, and runs on
    pyg, where this package is not installed; where it is, the block turns it back by its ``graph_attention_backend``.

    Parameters
    ----------
    out_channels : int
        C, the channels of one head.
    """

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self._recent = RecentLayouts()
        _MODULES.add(self)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor | FactorisedEdges,
        edge_index: Tensor,
        size: tuple[int, int] | None = None,
        edges_are_dst_sorted: bool = False,
    ) -> Tensor:
        """Compute ``[N_dst, H, C]``.

        Parameters
        ----------
        query : Tensor
            ``[N_dst, H, C]``.
        key, value : Tensor
            ``[N_src, H, C]``.
        edge_attr : Tensor or FactorisedEdges
            ``[M, H, C]``, or what makes them.
        edge_index : Tensor
            ``[2, M]``.
        size : tuple of int or None
            The host's ``(N_src, N_dst)``: the shapes say it, too.
        edges_are_dst_sorted : bool
            The caller's claim, which is checked.

        Raises
        ------
        ValueError
            If the edges are on another device than the nodes, do not fit to them, or are not in the claimed order.
        UnsupportedProblem
            If the kernels cannot compute this on a GPU.
        """
        if edge_index.device != value.device:
            raise ValueError(
                f"The edges of the graph (edge_index) are on {edge_index.device}, the nodes on {value.device}. One "
                "device is needed. Move the model with its graph providers, or the edges given to it, by "
                f".to('{value.device}')."
            )
        layout = self._layout(edge_index, (key.shape[0], query.shape[0]), edges_are_dst_sorted)
        if isinstance(edge_attr, FactorisedEdges):
            return _BACKEND.run_factorised(
                query, key, value, edge_attr.attributes, edge_attr.weight, edge_attr.bias, layout
            )
        return _BACKEND.run(query, key, value, edge_attr, layout)

    # A look-up, not a computation: nothing in it can be compiled.
    @torch.compiler.disable
    def _layout(self, edge_index: Tensor, num_nodes: tuple[int, int], edges_are_dst_sorted: bool) -> GraphLayout:
        layout = layout_of(edge_index, num_nodes, edges_are_dst_sorted=edges_are_dst_sorted)
        self._recent.keep(layout)
        return layout

    def extra_repr(self) -> str:
        """Show the backend where the model is printed."""
        return f"backend={NAME}"

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphAttentionModule:
        copied = GraphAttentionModule(self.out_channels).train(self.training)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        from anemoi.models.layers.conv import GraphTransformerConv

        return GraphTransformerConv, (self.out_channels,)


def is_in_use() -> bool:
    """Return whether a model of this process uses the backend."""
    return len(_MODULES) > 0
