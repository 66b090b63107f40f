# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The implementations that ``attention.py`` compares, and how one of them is verified and timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention

from anemoi.plugins.attention.models.triton.attention import fused_attention

NAMES = ("out", "d_query", "d_key", "d_value")
# Queries that the oracle takes at once: N x 2048 float64 numbers.
_CHUNK = 2048
# Relative L2 error in bf16; that of the peers' output is 2.2e-3, of their gradients up to 5e-3.
TOLERANCE = 1e-2
PERCENTILES = {"p20": 0.2, "p50": 0.5, "p80": 0.8}


def versions() -> dict[str, str]:
    """Return what the numbers depend on."""
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


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


def draw(batch: int, heads: int, length: int, head_dim: int) -> list[Tensor]:
    """Draw query, key, value and the gradient of the output, in the layout of a linear layer's rows."""
    torch.manual_seed(0)
    shape = (batch, length, heads, head_dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)]


def relative(got: Tensor, expected: Tensor) -> float:
    """Return the relative L2 error."""
    return ((got.double() - expected).norm() / expected.norm()).item()


@cache
def exact(
    batch: int, heads: int, length: int, head_dim: int, window: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output and gradients of the last head in float64, from the definition, some queries at a time."""
    query, key, value, d_out = (x[-1, -1].double() for x in draw(batch, heads, length, head_dim))
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


def measure(
    batch: int, heads: int, length: int, head_dim: int, window: int | None, name: str, repetitions: int
) -> dict[str, object]:
    """Verify one implementation, take its peak memory, and time it."""
    function = implementation(name, length, window)
    if function is None:
        return {"skipped": "no window"}
    *leaves, d_out = draw(batch, heads, length, head_dim)
    leaves = [x.requires_grad_() for x in leaves]
    expected = exact(batch, heads, length, head_dim, window)
    out = function(*leaves)
    results = (out.detach(), *torch.autograd.grad(out, leaves, d_out, retain_graph=True))
    errors = {quantity: relative(a[-1, -1], b) for quantity, a, b in zip(NAMES, results, expected, strict=True)}
    # Written so that NaN fails.
    if not all(error < TOLERANCE for error in errors.values()):
        return {"errors": errors, "skipped": f"wrong result, {max(errors, key=lambda key: errors[key])}"}
    del results
    backward_ms = percentiles(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True), repetitions)
    out = None
    # The backward is timed first, so that only what a training step needs counts as memory.
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(function(*leaves), leaves, d_out)
    torch.cuda.synchronize()
    return {
        "errors": errors,
        # Beyond the inputs.
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "forward_ms": percentiles(lambda: function(*leaves), repetitions),
        "backward_ms": backward_ms,
        "forward_backward_ms": percentiles(lambda: torch.autograd.grad(function(*leaves), leaves, d_out), repetitions),
    }


def percentiles(function: Callable[[], object], repetitions: int) -> dict[str, float]:
    """Time a function by device events."""
    times = triton.testing.do_bench(function, warmup=25, rep=repetitions, quantiles=list(PERCENTILES.values()))
    return dict(zip(PERCENTILES, times, strict=True))
