# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""How an implementation is verified, timed, and its memory taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

PERCENTILES = {"p20": 0.2, "p50": 0.5, "p80": 0.8}


def relative(got: Tensor, expected: Tensor) -> float:
    """Return the relative L2 error."""
    return ((got.double() - expected).norm() / expected.norm()).item()


def gradients(function: Callable[..., Tensor], tensors: Sequence[Tensor], d_out: Tensor) -> list[Tensor]:
    """Return ``function(*tensors)`` and the gradients of all tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out.to(out.dtype))]


def percentiles(function: Callable[[], object], repetitions: int) -> dict[str, float]:
    """Time a function by device events for ``repetitions`` milliseconds; on a CPU once, by the clock."""
    if not torch.cuda.is_available():
        began = time.perf_counter()
        function()
        return dict.fromkeys(PERCENTILES, 1e3 * (time.perf_counter() - began))
    times = triton.testing.do_bench(function, warmup=25, rep=repetitions, quantiles=list(PERCENTILES.values()))
    return dict(zip(PERCENTILES, times, strict=True))


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the bytes that a call needs beyond what is allocated before; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    d_out: Tensor,
    errors: Callable[[list[Tensor]], dict[str, float]],
    tolerance: float,
    repetitions: int,
) -> dict[str, Any]:
    """Verify one implementation, take its peak memory, and time it; what is not right is not timed.

    Parameters
    ----------
    function : callable
        Takes ``inputs``, all of which get a gradient.
    inputs : sequence of Tensor
        What it takes.
    d_out : Tensor
        Gradient of its output.
    errors : callable
        Takes output and gradients, returns the relative error of each by name.
    tolerance : float
        Largest relative error.
    repetitions : int
        Milliseconds that each quantity is repeated for.
    """
    found = errors(gradients(function, inputs, d_out))
    # Written so that NaN fails.
    if not all(error < tolerance for error in found.values()):
        worst = max(found, key=lambda key: found[key])
        return {"errors": found, "skipped": f"wrong result: {worst} off by {found[worst]:.1e}"}
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    # The backward is timed first, so that only what a training step needs counts as memory.
    backward_ms = percentiles(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True), repetitions)
    out = None
    step = lambda: torch.autograd.grad(function(*leaves), leaves, d_out)  # noqa: E731
    return {
        "errors": found,
        # Beyond the inputs.
        "peak_bytes": peak_bytes(step),
        "forward_ms": percentiles(lambda: function(*leaves), repetitions),
        "backward_ms": backward_ms,
        "forward_backward_ms": percentiles(step, repetitions),
    }
