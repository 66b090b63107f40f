# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graph-transformer attention in plain torch, vectorised over the edges: for CPUs and for fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .layout import GraphLayout

# Without gradients, edges are worked off in blocks with this many numbers in their largest intermediate.
_BLOCK_NUMBERS = 2**24


def torch_graph_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor, layout: GraphLayout) -> Tensor:
    """Compute graph attention with memory for some ``[M, H, C]``, or for blocks of it where no gradient is needed.

    fp16 and bf16 inputs are computed in fp32.

    Parameters
    ----------
    query, key, value, edges, layout
        As in :func:`~anemoi.plugins.attention.models.graph.functional.graph_attention`.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, dtype of the query; differentiable (twice).
    """

    def attend(part: _Part) -> Tensor:
        own = _widened(query[part.nodes])
        rows = _widened(part.select(edges))
        scores = (own.index_select(0, part.destination) * (_gathered(key, part.source) + rows)).sum(-1)
        weights = _softmax(scores * query.shape[2] ** -0.5, part)
        return _summed((_gathered(value, part.source) + rows) * weights.unsqueeze(-1), part)

    return _in_parts(attend, (query, key, value, edges), layout)


def torch_graph_attention_factorised(
    query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, weight: Tensor, bias: Tensor, layout: GraphLayout
) -> Tensor:
    """Compute graph attention with edges ``edge_attr @ weight.T + bias``, without these.

    Parameters
    ----------
    query, key, value, edge_attr, weight, bias, layout
        As in :func:`~anemoi.plugins.attention.models.graph.functional.graph_attention_factorised`.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, dtype of the query; differentiable (twice).
    """
    _, num_heads, head_dim = query.shape

    def attend(part: _Part) -> Tensor:
        own = _widened(query[part.nodes])
        attributes = _widened(part.select(edge_attr)).unsqueeze(1)  # [M, 1, A]
        matrix = _widened(weight).view(num_heads, head_dim, -1)
        projected = torch.einsum("nhc,hca->nha", own, matrix)
        scores = (own.index_select(0, part.destination) * _gathered(key, part.source)).sum(-1)
        scores = scores + (projected.index_select(0, part.destination) * attributes).sum(-1)
        weights = _softmax(scores * head_dim**-0.5, part).unsqueeze(-1)  # [M, H, 1]
        out = _summed(_gathered(value, part.source) * weights, part)
        out = out + torch.einsum("nha,hca->nhc", _summed(attributes * weights, part), matrix)
        has_edges = (layout.tensors[0].diff() > 0)[part.nodes].to(out).view(-1, 1, 1)
        return out + has_edges * _widened(bias).view(num_heads, head_dim)

    return _in_parts(attend, (query, key, value, edge_attr, weight, bias), layout)


class _Part(NamedTuple):
    """A range of destinations with their edges; ``destination`` counts from the first of them."""

    nodes: slice
    edges: slice
    source: Tensor
    destination: Tensor
    num_nodes: int
    edge_row: Tensor | None

    def select(self, rows: Tensor) -> Tensor:
        """Return the rows of these edges, which the caller has in his own order."""
        return rows[self.edges] if self.edge_row is None else rows.index_select(0, self.edge_row)


def _in_parts(attend: Callable[[_Part], Tensor], tensors: tuple[Tensor, ...], layout: GraphLayout) -> Tensor:
    """Call ``attend`` for all destinations, in blocks if nothing is kept for gradients."""
    query = tensors[0]
    numbers = layout.num_edges * query.shape[1] * query.shape[2]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    is_whole = needs_gradient or numbers <= _BLOCK_NUMBERS or torch.compiler.is_compiling()
    # The sums are fp32 under autocast, too.
    with torch.autocast(query.device.type, enabled=False):
        if is_whole:
            return attend(_part(layout, (0, layout.num_nodes[1]), (0, layout.num_edges))).to(query.dtype)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for part in _blocks(layout, -(-numbers // _BLOCK_NUMBERS)):
            out[part.nodes] = attend(part).to(query.dtype)
        return out


def _blocks(layout: GraphLayout, number: int) -> list[_Part]:
    """Cut the destinations where about a ``number``-th of the edges is full; a hub stays whole."""
    offsets = layout.tensors[0]
    wanted = torch.arange(1, number, device=offsets.device) * (layout.num_edges / number)
    cuts = torch.searchsorted(offsets, wanted.to(offsets.dtype)).unique()
    cuts = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), layout.num_nodes[1])])
    nodes, edges = cuts.tolist(), offsets[cuts].tolist()
    return [
        _part(layout, (nodes[i], nodes[i + 1]), (edges[i], edges[i + 1]))
        for i in range(len(nodes) - 1)
        if nodes[i] < nodes[i + 1]
    ]


def _part(layout: GraphLayout, nodes: tuple[int, int], edges: tuple[int, int]) -> _Part:
    mine = slice(*edges)
    return _Part(
        nodes=slice(*nodes),
        edges=mine,
        source=layout.source[mine],
        destination=layout.destination[mine] - nodes[0],
        num_nodes=nodes[1] - nodes[0],
        edge_row=None if layout.edge_row is None else layout.edge_row[mine],
    )


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _gathered(nodes: Tensor, index: Tensor) -> Tensor:
    if torch.is_grad_enabled() and nodes.requires_grad:
        # Widened first: the gradient then adds up in fp32.
        return _widened(nodes).index_select(0, index)
    return _widened(nodes.index_select(0, index))


def _softmax(scores: Tensor, part: _Part) -> Tensor:
    """Normalise scores ``[M, H]`` over the edges of each destination."""
    index = part.destination.long().unsqueeze(-1).expand_as(scores)
    largest = scores.new_zeros(part.num_nodes, scores.shape[1])
    # A shift by a constant: no gradient needed.
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    weights = torch.exp(scores - largest.index_select(0, part.destination))
    return weights / _summed(weights, part).index_select(0, part.destination)


def _summed(rows: Tensor, part: _Part) -> Tensor:
    """Sum rows ``[M, ...]`` by destination."""
    return rows.new_zeros(part.num_nodes, *rows.shape[1:]).index_add(0, part.destination, rows)
