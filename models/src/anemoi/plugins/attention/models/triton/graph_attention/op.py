# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graph attention as torch operators with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction

from ...errors import UnsupportedProblem
from ...graph.layout import GraphLayout
from . import configurations
from . import launch
from .forward import _graph_attention_fwd_kernel

_INTERPRETED = not isinstance(_graph_attention_fwd_kernel, JITFunction)


def unsupported_reasons(query: Tensor, num_attributes: int | None = None) -> list[str]:
    """Say why the kernels cannot compute a graph attention.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]``.
    num_attributes : int or None
        A, if the edges are factorised.

    Returns
    -------
    list of str
        Short texts such as ``"head_dim=320 (at most 256)"``; empty if the kernels can.
    """
    reasons = []
    if query.dtype not in configurations.DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in configurations.DTYPES)
        reasons.append(f"dtype={str(query.dtype).removeprefix('torch.')} (one of {allowed})")
    if query.device.type != "cuda" and not _INTERPRETED:
        reasons.append(f"device={query.device.type} (needs cuda)")
    if num_attributes is not None:
        head_dim = query.shape[-1]
        if head_dim > configurations.MAX_FACTORISED_HEAD_DIM:
            reasons.append(f"head_dim={head_dim} (at most {configurations.MAX_FACTORISED_HEAD_DIM} for attributes)")
        if not 1 <= num_attributes <= configurations.MAX_FACTORISED_ATTRIBUTES:
            reasons.append(f"{num_attributes} edge attributes (1 to {configurations.MAX_FACTORISED_ATTRIBUTES})")
    return reasons


def fused_graph_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor, layout: GraphLayout) -> Tensor:
    """Compute graph attention without intermediates of the size of the edges.

    Forward and backward are deterministic, with fp32 sums. Inputs are those of
    :func:`~anemoi.plugins.attention.models.graph.functional.graph_attention`, checked there.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]``, fp16, bf16 or fp32.
    key, value : Tensor
        ``[N_src, H, C]``.
    edges : Tensor
        ``[M, H, C]``, in the caller's order of edges.
    layout : GraphLayout
        The graph.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, contiguous, dtype of the query.

    Raises
    ------
    UnsupportedProblem
        If dtype or device are not supported.
    """
    _refuse(unsupported_reasons(query))
    scale = max(query.shape[2], 1) ** -0.5
    return _graph_attention_forward(
        query, key, value, edges, layout.tensors, layout.max_in_degree, layout.max_out_degree, scale
    )


def fused_graph_attention_factorised(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    weight: Tensor,
    bias: Tensor,
    layout: GraphLayout,
) -> Tensor:
    """Compute graph attention with the edges ``edge_attr @ weight.T + bias``, which never exist.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]``, fp16, bf16 or fp32, C at most 128.
    key, value : Tensor
        ``[N_src, H, C]``.
    edge_attr : Tensor
        ``[M, A]``, in the caller's order of edges, A at most 31.
    weight, bias : Tensor
        ``[H * C, A]`` and ``[H * C]``.
    layout : GraphLayout
        The graph.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, contiguous, dtype of the query.

    Raises
    ------
    UnsupportedProblem
        If dtype, device, C or A are not supported.
    """
    _refuse(unsupported_reasons(query, edge_attr.shape[1]))
    scale = max(query.shape[2], 1) ** -0.5
    return _factorised_forward(
        query, key, value, edge_attr, weight, bias, layout.tensors, layout.max_in_degree, layout.max_out_degree, scale
    )


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise UnsupportedProblem(
            f"The Triton graph attention cannot run this problem: {'; '.join(reasons)}. Change the inputs, or choose "
            "another backend."
        )


def _rows_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _no_gradient(tensor: Tensor) -> Tensor:
    return tensor.new_empty(0)


@torch.library.custom_op("anemoi_plugins_attention::graph_attention_forward", mutates_args=())
def _graph_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Tensor,
    graph: Sequence[Tensor],
    max_in_degree: int,
    max_out_degree: int,
    scale: float,
) -> Tensor:
    out = _rows_like(query)
    options = launch.Options(max_in_degree, max_out_degree, scale)
    query, key, value, edges = map(launch.readable, (query, key, value, edges))
    call = launch.forward_call(query, key, value, launch.Edges(edges), out, launch.Graph(*graph), options)
    call.launch(query.device)
    return out


@_graph_attention_forward.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return _rows_like(query)


@torch.library.custom_op("anemoi_plugins_attention::graph_attention_backward", mutates_args=())
def _graph_attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Tensor,
    graph: Sequence[Tensor],
    max_in_degree: int,
    max_out_degree: int,
    scale: float,
    needs_edges: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_query, d_key, d_value = map(_rows_like, (query, key, value))
    d_edges = _rows_like(edges) if needs_edges else None
    gradients = launch.Gradients(d_query, d_edges, *_weights(query, edges))
    d_out, query, key, value, edges = map(launch.readable, (d_out, query, key, value, edges))
    options = launch.Options(max_in_degree, max_out_degree, scale)
    named = launch.Graph(*graph)
    _run_backward(d_out, query, key, value, edges, None, gradients, d_key, d_value, named, options)
    return d_query, d_key, d_value, _no_gradient(edges) if d_edges is None else d_edges


@_graph_attention_backward.register_fake
def _(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, edges: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_edges = _rows_like(edges) if rest[-1] else _no_gradient(edges)
    return _rows_like(query), _rows_like(key), _rows_like(value), d_edges


@torch.library.custom_op("anemoi_plugins_attention::graph_attention_factorised_forward", mutates_args=())
def _factorised_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    weight: Tensor,
    bias: Tensor,
    graph: Sequence[Tensor],
    max_in_degree: int,
    max_out_degree: int,
    scale: float,
) -> Tensor:
    out = _rows_like(query)
    options = launch.Options(max_in_degree, max_out_degree, scale)
    query, key, value, edge_attr = map(launch.readable, (query, key, value, edge_attr))
    edges = launch.Edges(edge_attr, weight.contiguous(), bias.contiguous())
    launch.forward_call(query, key, value, edges, out, launch.Graph(*graph), options).launch(query.device)
    return out


@_factorised_forward.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return _rows_like(query)


@torch.library.custom_op("anemoi_plugins_attention::graph_attention_factorised_backward", mutates_args=())
def _factorised_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    weight: Tensor,
    graph: Sequence[Tensor],
    max_in_degree: int,
    max_out_degree: int,
    scale: float,
    needs_attr: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_query, d_key, d_value = map(_rows_like, (query, key, value))
    options = launch.Options(max_in_degree, max_out_degree, scale)
    d_out, query, key, value, edge_attr = map(launch.readable, (d_out, query, key, value, edge_attr))
    weight = weight.contiguous()
    edges = launch.Edges(edge_attr, weight)
    nodes, heads, head_dim = query.shape
    projected = None
    if needs_attr:
        # Rounding these costs no more than a rounded gradient of the edges would; fp16 has too small a range.
        dtype = query.dtype if query.dtype == torch.bfloat16 else torch.float32
        shape = (nodes, heads, edge_attr.shape[1])
        projected = (query.new_empty(shape, dtype=dtype), query.new_empty(shape, dtype=dtype))
    num_shares = launch.num_shares(query, edges, options)
    shares = query.new_empty((num_shares, heads, head_dim, edge_attr.shape[1] + 1), dtype=torch.float32)
    gradients = launch.Gradients(d_query, None, *_weights(query, edge_attr), projected, shares)
    named = launch.Graph(*graph)
    _run_backward(d_out, query, key, value, edge_attr, weight, gradients, d_key, d_value, named, options)
    d_attr = _no_gradient(edge_attr)
    if needs_attr:
        d_attr = _rows_like(edge_attr)
        launch.backward_attributes_call(gradients, d_attr, named).launch(query.device)
    # Copies, since the results of an operator may share no memory.
    d_weight, d_bias = (
        part.to(weight.dtype, copy=True, memory_format=torch.contiguous_format)
        for part in shares.sum(0).view(weight.shape[0], -1).split([weight.shape[1], 1], 1)
    )
    return d_query, d_key, d_value, d_attr, d_weight, d_bias.view(-1)


@_factorised_backward.register_fake
def _(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_attr = _rows_like(edge_attr) if rest[-1] else _no_gradient(edge_attr)
    d_query, d_key, d_value = map(_rows_like, (query, key, value))
    return d_query, d_key, d_value, d_attr, _rows_like(weight), weight.new_empty(weight.shape[0])


def _weights(query: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    shape = (query.shape[1], edges.shape[0])
    return query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.float32)


def _run_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Tensor,
    weight: Tensor | None,
    gradients: launch.Gradients,
    d_key: Tensor,
    d_value: Tensor,
    graph: launch.Graph,
    options: launch.Options,
) -> None:
    by_destination = launch.backward_destination_call(
        d_out, query, key, value, launch.Edges(edges, weight), gradients, graph, options
    )
    by_destination.launch(query.device)
    for call in launch.backward_source_calls(d_out, query, gradients, d_key, d_value, graph, options):
        call.launch(query.device)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    query, key, value, edges, graph, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, edges, *graph)


def _backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
    query, key, value, edges, *graph = ctx.saved_tensors
    needs_edges = ctx.needs_input_grad[3]
    *gradients, d_edges = _graph_attention_backward(d_out, query, key, value, edges, graph, *ctx.options, needs_edges)
    return (*gradients, d_edges if needs_edges else None, [None] * len(graph), None, None, None)


def _setup_factorised_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    query, key, value, edge_attr, weight, _, graph, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, edge_attr, weight, *graph)


def _factorised_autograd(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
    query, key, value, edge_attr, weight, *graph = ctx.saved_tensors
    needs_attr = ctx.needs_input_grad[3]
    *gradients, d_attr, d_weight, d_bias = _factorised_backward(
        d_out, query, key, value, edge_attr, weight, graph, *ctx.options, needs_attr
    )
    d_attr = d_attr if needs_attr else None
    return (*gradients, d_attr, d_weight, d_bias, [None] * len(graph), None, None, None)


_graph_attention_forward.register_autograd(_backward, setup_context=_setup_context)
_factorised_forward.register_autograd(_factorised_autograd, setup_context=_setup_factorised_context)
