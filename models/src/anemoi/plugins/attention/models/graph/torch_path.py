# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graph-transformer attention in plain torch, vectorised over the edges: for CPUs and for fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import GraphLayout


def torch_graph_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor, layout: GraphLayout) -> Tensor:
    """Compute graph attention with memory for some ``[M, H, C]``.

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
    source, destination = layout.source, layout.destination
    rows = _widened(_by_destination(edges, layout))
    scores = (_gathered(query, destination) * (_gathered(key, source) + rows)).sum(-1)
    weights = _softmax(scores * query.shape[2] ** -0.5, layout)
    out = _summed((_gathered(value, source) + rows) * weights.unsqueeze(-1), layout)
    return out.to(query.dtype)


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
    source, destination = layout.source, layout.destination
    attributes = _widened(_by_destination(edge_attr, layout)).unsqueeze(1)  # [M, 1, A]
    matrix = _widened(weight).view(num_heads, head_dim, -1)
    projected = torch.einsum("nhc,hca->nha", _widened(query), matrix)
    scores = (_gathered(query, destination) * _gathered(key, source)).sum(-1)
    scores = scores + (projected.index_select(0, destination) * attributes).sum(-1)
    weights = _softmax(scores * head_dim**-0.5, layout).unsqueeze(-1)  # [M, H, 1]
    out = _summed(_gathered(value, source) * weights, layout)
    out = out + torch.einsum("nha,hca->nhc", _summed(attributes * weights, layout), matrix)
    has_edges = (layout.tensors[0].diff() > 0).to(out).view(-1, 1, 1)
    return (out + has_edges * _widened(bias).view(num_heads, head_dim)).to(query.dtype)


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _gathered(nodes: Tensor, index: Tensor) -> Tensor:
    # Widened first: the gradient then adds up in fp32.
    return _widened(nodes).index_select(0, index)


def _by_destination(edges: Tensor, layout: GraphLayout) -> Tensor:
    return edges if layout.edge_row is None else edges.index_select(0, layout.edge_row)


def _softmax(scores: Tensor, layout: GraphLayout) -> Tensor:
    """Normalise scores ``[M, H]`` over the edges of each destination."""
    index = layout.destination.long().unsqueeze(-1).expand_as(scores)
    largest = scores.new_zeros(layout.num_nodes[1], scores.shape[1])
    # A shift by a constant: no gradient needed.
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    weights = torch.exp(scores - largest.index_select(0, layout.destination))
    return weights / _summed(weights, layout).index_select(0, layout.destination)


def _summed(rows: Tensor, layout: GraphLayout) -> Tensor:
    """Sum rows ``[M, ...]`` by destination."""
    return rows.new_zeros(layout.num_nodes[1], *rows.shape[1:]).index_add(0, layout.destination, rows)
