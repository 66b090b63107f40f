# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The implementations that ``attention.py`` compares, and how one of them is verified and timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import timing
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention

from anemoi.plugins.attention.models.triton.attention import fused_attention

NAMES = ("out", "d_query", "d_key", "d_value")
# Queries that the oracle takes at once: N x 2048 float64 numbers.
_CHUNK = 2048
# Relative L2 error; in bf16 that of the peers' output is 2.2e-3, of their gradients up to 5e-3.
TOLERANCE = 1e-2


class FlashAttention2(torch.autograd.Function):
    """FlashAttention-2 with its window, as torch ships it."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
        """Transpose to the layout of flash-attention and call it."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        length = query.shape[1]
        limits = {"window_size_left": window, "window_size_right": window}
        out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            query, key, value, None, None, length, length, 0.0, False, False, scale=None, **limits
        )
        ctx.save_for_backward(query, key, value, out, lse, seed, offset)
        ctx.limits = limits
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Call the backward of flash-attention."""
        query, key, value, out, lse, seed, offset = ctx.saved_tensors
        n = query.shape[1]
        gradients = torch.ops.aten._flash_attention_backward(
            d_out.transpose(1, 2), query, key, value, out, lse, None, None, n, n, 0.0, False, seed, offset, **ctx.limits
        )
        return (*(x.transpose(1, 2) for x in gradients), None)


def cudnn(*tensors: Tensor) -> Tensor:
    """Attention by cuDNN, which knows no window."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(*tensors)


@cache
def compiled_flex() -> Callable[..., Tensor]:
    """Compile FlexAttention."""
    return torch.compile(flex_attention, dynamic=False)


def implementation(name: str, length: int, window: int | None) -> Callable[..., Tensor] | None:
    """Return one implementation for a length and a window, or None if it has no window."""
    limit = -1 if window is None else window
    if name == "ours":
        return lambda *x: fused_attention(*x, window_size=(limit, limit))
    if name == "fa2":
        return lambda *x: FlashAttention2.apply(*x, limit)
    if name == "cudnn":
        return None if window is not None else cudnn
    mask = None
    if window is not None:
        seen = lambda b, h, i, j: (i - j <= window) & (j - i <= window)  # noqa: E731
        mask = create_block_mask(seen, None, None, length, length, device="cuda", _compile=True)
    return lambda *x: compiled_flex()(*x, block_mask=mask)


def draw(batch: int, heads: int, length: int, head_dim: int, dtype: str) -> list[Tensor]:
    """Draw query, key, value and the gradient of the output, in the layout of a linear layer's rows."""
    torch.manual_seed(0)
    shape = (batch, length, heads, head_dim)
    return [torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)).transpose(1, 2) for _ in range(4)]


@cache
def exact(
    batch: int, heads: int, length: int, head_dim: int, window: int | None, dtype: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output and gradients of the last head in float64, from the definition, some queries at a time."""
    query, key, value, d_out = (x[-1, -1].double() for x in draw(batch, heads, length, head_dim, dtype))
    scale = head_dim**-0.5
    out, d_query, d_key, d_value = (torch.zeros_like(x) for x in (query, query, key, value))
    columns = torch.arange(length, device="cuda")
    for first in range(0, length, _CHUNK):
        rows = slice(first, min(first + _CHUNK, length))
        scores = query[rows] @ key.T * scale
        if window is not None:
            scores = scores.masked_fill((columns[rows, None] - columns).abs() > window, -torch.inf)
        weights = scores.softmax(-1)
        out[rows] = weights @ value
        d_value += weights.T @ d_out[rows]
        d_weights = d_out[rows] @ value.T
        d_scores = weights * (d_weights - (d_out[rows] * out[rows]).sum(-1, keepdim=True)) * scale
        d_query[rows] = d_scores @ key
        d_key += d_scores.T @ query[rows]
    return out, d_query, d_key, d_value


def measure(shape: tuple[int, int, int, int, int | None], dtype: str, name: str, repetitions: int) -> dict[str, object]:
    """Verify one implementation, take its peak memory, and time it."""
    *sizes, window = shape
    function = implementation(name, sizes[2], window)
    if function is None:
        return {"skipped": "no window"}
    *inputs, d_out = draw(*sizes, dtype)
    expected = exact(*sizes, window, dtype)
    errors = lambda results: {  # noqa: E731
        quantity: timing.relative(a[-1, -1], b) for quantity, a, b in zip(NAMES, results, expected, strict=True)
    }
    return timing.measure(function, inputs, d_out, errors, TOLERANCE, repetitions)
