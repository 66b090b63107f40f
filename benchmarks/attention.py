# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Time the fused attention beside its peers on this GPU; what is not right is not timed.

Peers: FlashAttention-2 and cuDNN as torch ships them, and FlexAttention compiled. Example::

    python benchmarks/attention.py --cases w512 global --peers fa2 flex --output attention.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention

from anemoi.plugins.attention.models.triton.attention import fused_attention

# name: B, H, N, D, window
CASES = {
    "w512": (1, 16, 40320, 64, 512),
    "w1120": (1, 16, 40320, 64, 1120),
    "global": (1, 16, 40320, 64, None),
    "d128-w512": (1, 16, 40320, 128, 512),
    "d32-global": (1, 16, 40320, 32, None),
}
CHECKED_ROWS = 256
# Relative L2 error in bf16; the peers' is 2.2e-3.
TOLERANCE = 5e-3


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


def implementation(name: str, length: int, window: int | None) -> Callable | None:
    """Return one implementation for a case, or None if it has no window."""
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
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda *x: compiled(*x, block_mask=mask)


def cudnn(*tensors: Tensor) -> Tensor:
    """Attention by cuDNN, which knows no window."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(*tensors)


def relative_error(out: Tensor, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> float:
    """Compare the first rows of the output with float64."""
    rows = query[:, :, :CHECKED_ROWS].double()
    reach = key.shape[2] if window is None else min(key.shape[2], CHECKED_ROWS + window)
    scores = rows @ key[:, :, :reach].double().transpose(-1, -2) * query.shape[3] ** -0.5
    if window is not None:
        i = torch.arange(CHECKED_ROWS, device="cuda")[:, None]
        j = torch.arange(reach, device="cuda")[None, :]
        scores = scores.masked_fill((i - j).abs() > window, -torch.inf)
    expected = scores.softmax(-1) @ value[:, :, :reach].double()
    return ((out[:, :, :CHECKED_ROWS].double() - expected).norm() / expected.norm()).item()


def measure(case: str, name: str, repetitions: int) -> dict[str, object]:
    """Verify and time one implementation; milliseconds are medians of device events."""
    batch, heads, length, head_dim, window = CASES[case]
    torch.manual_seed(0)
    query, key, value, d_out = (
        torch.randn(batch, heads, length, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    leaves = [x.requires_grad_() for x in (query, key, value)]
    function = implementation(name, length, window)
    if function is None:
        return {"skipped": "no window"}
    out = function(*leaves)
    with torch.no_grad():
        error = relative_error(out, query, key, value, window)
    if not error < TOLERANCE:
        return {"error": error, "skipped": "wrong result"}
    bench = lambda f: triton.testing.do_bench(f, warmup=25, rep=repetitions, quantiles=[0.5, 0.2, 0.8])  # noqa: E731
    forward = bench(lambda: function(*leaves))
    backward = bench(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True))
    both = bench(lambda: torch.autograd.grad(function(*leaves), leaves, d_out))
    return {"error": error, "forward_ms": forward, "backward_ms": backward, "forward_backward_ms": both}


def main() -> None:
    """Run all cases and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="shapes")
    parser.add_argument("--peers", nargs="*", choices=["fa2", "cudnn", "flex"], default=["fa2", "cudnn", "flex"])
    parser.add_argument("--repetitions", type=int, default=100, help="milliseconds each quantity is repeated for")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
    }
    rows = []
    for case in arguments.cases:
        for name in ["ours", *arguments.peers]:
            try:
                result = measure(case, name, arguments.repetitions)
            except Exception as error:
                # A peer that cannot run is a result too.
                result = {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}
            rows.append({"case": case, "implementation": name, **result, **versions})
            numbers = [f"{result[key][0]:.3f}" for key in result if key.endswith("_ms")]
            print(case, name, *numbers, result.get("skipped", ""), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
