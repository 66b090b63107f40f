# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The public functions of graph-transformer attention."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import UnknownBackend
from .layout import GraphLayout
from .torch_path import torch_graph_attention
from .torch_path import torch_graph_attention_factorised

TRITON = "triton_graph_attention"
TORCH = "torch_graph_attention"
BACKENDS = ("auto", TRITON, TORCH)


def graph_attention(
    query: Tensor, key: Tensor, value: Tensor, edges: Tensor, layout: GraphLayout, *, backend: str = "auto"
) -> Tensor:
    """Compute graph-transformer attention: for each destination, a softmax over its incoming edges.

    Scores are ``query . (key_src + edge) / sqrt(C)``; the output is the weighted sum of ``value_src + edge`` (Shi et
    al. 2021, https://arxiv.org/abs/2009.03509, as in Anemoi's ``GraphTransformerConv``). A destination without edges
    gets zeros and has zero gradients. Deterministic on a GPU, forward and backward.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]`` in fp16, bf16 or fp32 (fp64 by the torch path alone); any H and C. Sums are fp32. Rows at any
        distance from each other are read in place.
    key, value : Tensor
        ``[N_src, H, C]``.
    edges : Tensor
        ``[M, H, C]``, in the order of the ``edge_index`` that the layout was made from.
    layout : GraphLayout
        The graph; see :meth:`GraphLayout.from_edge_index` and :func:`layout_of`.
    backend : str
        ``triton_graph_attention``, ``torch_graph_attention`` or ``auto``, which takes Triton on a GPU and torch
        elsewhere. A name runs or raises.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, dtype of the inputs. Under autocast with inputs of several dtypes that of ``value``.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit together, or to the layout.
    UnknownBackend
        If ``backend`` is no name of one.
    UnsupportedProblem
        If the chosen backend cannot compute this here; the message says why.
    """
    query, key, edges = _as_value((query, key, edges), value)
    _check_nodes(query, key, value, layout)
    _check_like_value("edges", edges, (layout.num_edges, *value.shape[1:]), value)
    if _takes_triton(backend, query):
        from ..triton.graph_attention import fused_graph_attention

        return fused_graph_attention(query, key, value, edges, layout)
    return torch_graph_attention(query, key, value, edges, layout)


def graph_attention_factorised(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layout: GraphLayout,
    *,
    backend: str = "auto",
) -> Tensor:
    """Compute :func:`graph_attention` with ``edges = edge_attr @ weight.T + bias``, which are never stored.

    Exact: ``query . edge = (W^T query) . attr + query . bias``, the last term is the same for all edges of a
    destination, and the weighted sum of edges is ``W (sum of weighted attr) + bias``. Neither ``[M, H, C]`` edges nor
    their gradient exist. The Triton kernels do this for C up to 128 and A up to 31; larger ones project the edges.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]`` in fp16, bf16 or fp32 (fp64 by the torch path alone).
    key, value : Tensor
        ``[N_src, H, C]``.
    edge_attr : Tensor
        ``[M, A]``, in the order of the ``edge_index`` that the layout was made from.
    weight : Tensor
        ``[H * C, A]``, that of a ``torch.nn.Linear``.
    bias : Tensor or None
        ``[H * C]``.
    layout : GraphLayout
        The graph.
    backend : str
        As in :func:`graph_attention`.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, dtype of the inputs. Under autocast with inputs of several dtypes that of ``value``.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit together, or to the layout.
    UnknownBackend
        If ``backend`` is no name of one.
    UnsupportedProblem
        If the chosen backend cannot compute this here; the message says why.
    """
    bias = value.new_zeros(weight.shape[0]) if bias is None else bias
    query, key, edge_attr, weight, bias = _as_value((query, key, edge_attr, weight, bias), value)
    _check_nodes(query, key, value, layout)
    channels, attributes = value.shape[1] * value.shape[2], edge_attr.shape[-1]
    _check_like_value("edge_attr", edge_attr, (layout.num_edges, attributes), value)
    _check_like_value("weight", weight, (channels, attributes), value)
    _check_like_value("bias", bias, (channels,), value)
    if not _takes_triton(backend, query):
        return torch_graph_attention_factorised(query, key, value, edge_attr, weight, bias, layout)

    from ..triton.graph_attention import fused_graph_attention
    from ..triton.graph_attention import fused_graph_attention_factorised
    from ..triton.graph_attention import unsupported_reasons

    if unsupported_reasons(query, attributes) and not unsupported_reasons(query):
        edges = functional.linear(edge_attr, weight, bias).view(-1, *value.shape[1:])
        return fused_graph_attention(query, key, value, edges, layout)
    return fused_graph_attention_factorised(query, key, value, edge_attr, weight, bias, layout)


def _takes_triton(backend: str, query: Tensor) -> bool:
    if backend not in BACKENDS:
        raise UnknownBackend("backend", backend, BACKENDS)
    if backend != "auto":
        return backend == TRITON
    fits = query.device.type == "cuda" and query.dtype != torch.float64
    return fits and importlib.util.find_spec("triton") is not None


def _as_value(tensors: tuple[Tensor, ...], value: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, bring the others to the dtype of ``value``: q/k norms leave fp32, and parameters are fp32."""
    if torch.is_autocast_enabled(value.device.type):
        return tuple(tensor.to(value.dtype) for tensor in tensors)
    return tensors


def _check_nodes(query: Tensor, key: Tensor, value: Tensor, layout: GraphLayout) -> None:
    if not (query.dim() == key.dim() == value.dim() == 3 and key.shape == value.shape):
        raise ValueError(
            f"graph attention got query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}. "
            "Allowed: [N_dst, H, C] for query, [N_src, H, C] for key and value. Reshape them."
        )
    if not value.dtype.is_floating_point:
        raise ValueError(
            f"graph attention takes floating-point tensors, got {value.dtype}. Cast to fp16, bf16 or fp32."
        )
    num_src, num_dst = layout.num_nodes
    _check_like_value("query", query, (num_dst, *value.shape[1:]), value)
    _check_like_value("value", value, (num_src, *value.shape[1:]), value)
    _check_like_value("key", key, tuple(value.shape), value)
    if layout.device != value.device:
        raise ValueError(
            f"The graph's layout is on {layout.device}, value on {value.device}. One device is needed. "
            "Use layout.to(value.device), once."
        )


def _check_like_value(name: str, tensor: Tensor, shape: tuple[int, ...], value: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, but the graph's layout and value need {shape}. "
            f"Check num_nodes=(N_src, N_dst) of the layout and the shape of {name}."
        )
    if tensor.dtype != value.dtype:
        raise ValueError(
            f"{name} has dtype {tensor.dtype}, value {value.dtype}. One dtype is needed; cast it, or run under "
            "torch.autocast."
        )
    if tensor.device != value.device:
        raise ValueError(
            f"{name} is on {tensor.device}, value on {value.device}. One device is needed. Move it with .to."
        )
