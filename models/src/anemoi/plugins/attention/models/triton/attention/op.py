# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The fused attention as a torch operator with gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction

from ...errors import UnsupportedProblem
from ...problem import UNLIMITED
from ...problem import normalise_window
from . import calls
from . import configurations
from . import dropout
from . import launch
from .forward import _attention_fwd_kernel

_INTERPRETED = not isinstance(_attention_fwd_kernel, JITFunction)


def unsupported_reasons(query: Tensor, key: Tensor, value: Tensor) -> list[str]:
    """Say why the kernels cannot compute an attention of these tensors.

    Parameters
    ----------
    query, key, value : Tensor
        ``[B, H, N, D]``.

    Returns
    -------
    list of str
        Short texts such as ``"head_dim=320 (at most 256)"``; empty if the kernels can.
    """
    reasons = []
    if query.dtype not in configurations.DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in configurations.DTYPES)
        reasons.append(f"dtype={str(query.dtype).removeprefix('torch.')} (one of {allowed})")
    if not query.dtype == key.dtype == value.dtype:
        reasons.append(f"dtypes {query.dtype}, {key.dtype}, {value.dtype} (must agree)")
    if not 1 <= query.shape[-1] <= configurations.MAX_HEAD_DIM:
        reasons.append(f"head_dim={query.shape[-1]} (at most {configurations.MAX_HEAD_DIM})")
    if query.device.type != "cuda" and not _INTERPRETED:
        reasons.append(f"device={query.device.type} (needs cuda)")
    return reasons


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window_size: tuple[int, int] = (UNLIMITED, UNLIMITED),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
) -> Tensor:
    """Compute multi-head attention without the matrix of weights, by the algorithm of FlashAttention-2.

    Memory is linear in N. Forward and backward are deterministic. The computation runs in the dtype of the inputs with
    fp32 sums, under autocast too: nothing is cast here.

    Parameters
    ----------
    query : Tensor
        ``[B, H, N_q, D]``, fp16, bf16 or fp32 (fp32-accurate, not tf32), D at most 256. Any strides: a layout whose
        last stride is 1 is read in place, another is copied.
    key, value : Tensor
        ``[B, H, N_k, D]``, dtype and device of the query.
    window_size : tuple of int
        ``(left, right)``: query i, at position ``p = i + N_k - N_q``, sees the keys ``p - left .. p + right``; -1 sets
        no limit. A row that sees no key gives zeros and has zero gradients.
    softmax_scale : float or None
        Factor on the scores, positive; ``D ** -0.5`` if None.
    softcap : float
        Scores become ``softcap * tanh(scores / softcap)``; 0 switches it off.
    alibi_slopes : Tensor or None
        ``[H]`` or ``[B, H]``: adds ``-slope * |p - j|`` to the scores, after the softcap. A constant: it gets no
        gradient.
    dropout_p : float
        Probability with which a weight is dropped; the others are divided by ``1 - dropout_p``.
    dropout_seed : int or None
        Seed of the dropout; None draws one from torch's generator of the device.

    Returns
    -------
    Tensor
        ``[B, H, N_q, D]``, dtype and memory layout of the query.

    Raises
    ------
    ValueError
        If the window is not valid.
    UnsupportedProblem
        If dtype, head_dim or device are not supported, the scale is not positive, or slopes require a gradient.

    References
    ----------
    Dao (2023), FlashAttention-2, https://arxiv.org/abs/2307.08691
    """
    left, right = normalise_window(window_size)
    scale = 1.0 / math.sqrt(max(query.shape[-1], 1)) if softmax_scale is None else float(softmax_scale)
    reasons = unsupported_reasons(query, key, value)
    if not scale > 0.0:
        reasons.append(f"softmax_scale={scale} (must be positive)")
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        reasons.append("alibi_slopes require a gradient (they are constants here)")
    if reasons:
        raise UnsupportedProblem(
            f"The Triton attention cannot run this problem: {'; '.join(reasons)}. Change the inputs, or choose "
            "another attention backend."
        )
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.detach().to(query.device, torch.float32).expand(query.shape[:2])
    seed = dropout.seed_tensor(dropout_seed, query.device) if dropout_p > 0.0 else None
    out, _ = _attention_forward(
        query, key, value, alibi_slopes, seed, left, right, scale, float(softcap), float(dropout_p)
    )
    return out


@torch.library.custom_op("anemoi_plugins_attention::attention_forward", mutates_args=())
def _attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slopes: Tensor | None,
    seed: Tensor | None,
    left: int,
    right: int,
    softmax_scale: float,
    softcap: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    out, lse = calls.empty_like(query), calls.empty_lse(query)
    options = calls.Options(left, right, softmax_scale, softcap, dropout_p, slopes, seed)
    query, key, value = map(calls.readable, (query, key, value))
    architecture = configurations.architecture_of(query.device)
    launch.forward_call(query, key, value, out, lse, options, architecture).launch(query.device)
    return out, lse


@_attention_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return calls.empty_like(query), calls.empty_lse(query)


@torch.library.custom_op("anemoi_plugins_attention::attention_backward", mutates_args=())
def _attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    slopes: Tensor | None,
    seed: Tensor | None,
    left: int,
    right: int,
    softmax_scale: float,
    softcap: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    d_query, d_key, d_value = map(calls.empty_like, (query, key, value))
    options = calls.Options(left, right, softmax_scale, softcap, dropout_p, slopes, seed)
    d_out, query, key, value, out = map(calls.readable, (d_out, query, key, value, out))
    delta = torch.empty_like(lse)
    architecture = configurations.architecture_of(query.device)
    launch.backward_query_call(d_out, query, key, value, out, lse, delta, d_query, options, architecture).launch(
        query.device
    )
    launch.backward_key_value_call(d_out, query, key, value, lse, delta, d_key, d_value, options, architecture).launch(
        query.device
    )
    return d_query, d_key, d_value


@_attention_backward.register_fake
def _(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return calls.empty_like(query), calls.empty_like(key), calls.empty_like(value)


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, slopes, seed, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output, slopes, seed)


def _backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
    # The LSE never leaves fused_attention, so its gradient is zero.
    gradients = _attention_backward(d_out, *ctx.saved_tensors, *ctx.options)
    return (*gradients, *[None] * 7)


_attention_forward.register_autograd(_backward, setup_context=_setup_context)
