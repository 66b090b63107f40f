# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Errors of the fused attention against float64 on a GPU, beside those of plain torch in the same dtype.

Example::

    python benchmarks/check_attention.py --lengths 97 1025 --dtypes bf16 --output check.json
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention
from anemoi.plugins.attention.models.triton.attention import fused_attention

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
ATOL = {"fp16": 1e-3, "bf16": 4e-3, "fp32": 1e-5}
NAMES = ("out", "d_query", "d_key", "d_value")


def main() -> int:
    """Run all cases; the exit code is 1 if one fails."""
    arguments = parse_arguments()
    # The oracle may not use tf32, nor sum bf16 products in bf16.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    rows = []
    cases = product(arguments.dtypes, arguments.head_dims, arguments.lengths, arguments.windows, arguments.magnitudes)
    for dtype, head_dim, length, window, magnitude in cases:
        row = {"dtype": dtype, "head_dim": head_dim, "length": length, "window": window, "magnitude": magnitude}
        # What cancels to zero is rounded to the size of the inputs.
        row |= check(DTYPES[dtype], head_dim, length, window, magnitude, ATOL[dtype] * max(1.0, magnitude))
        rows.append(row)
        if not row["passed"] or arguments.verbose:
            print(json.dumps(row), flush=True)
    failed = sum(not row["passed"] for row in rows)
    print(f"{len(rows)} cases, {failed} failed")
    if arguments.output:
        device = torch.cuda.get_device_name()
        arguments.output.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}, indent=1))
    return int(failed > 0)


def check(
    dtype: torch.dtype, head_dim: int, length: int, window: int | None, magnitude: float, atol: float
) -> dict[str, object]:
    """Compare one case; an error may be twice that of plain torch in the same dtype, plus ``atol``."""
    generator = torch.Generator("cuda").manual_seed(length * 1000 + head_dim)
    tensors = [
        torch.randn(1, 2, length, head_dim, device="cuda", dtype=torch.float64, generator=generator).to(dtype)
        for _ in range(4)
    ]
    query, key, value, d_out = tensors
    inputs = [(query * magnitude).to(dtype), key, value]
    expected = gradients(lambda *x: reference_attention(make_problem(*x, window_size=window)), inputs, d_out, True)
    eager = gradients(lambda *x: reference_attention(make_problem(*x, window_size=window)), inputs, d_out, False)
    limits = (-1, -1) if window is None else (window, window)
    ours = gradients(lambda *x: fused_attention(*x, window_size=limits), inputs, d_out, False)
    errors = {name: (got - want).abs().max().item() for name, got, want in zip(NAMES, ours, expected, strict=True)}
    allowed = {name: (got - want).abs().max().item() for name, got, want in zip(NAMES, eager, expected, strict=True)}
    # Written so that NaN fails.
    passed = all(errors[name] <= 2.0 * allowed[name] + atol for name in NAMES)
    return {"errors": errors, "eager_errors": allowed, "passed": passed}


def gradients(function, inputs: list[Tensor], d_out: Tensor, double: bool) -> list[Tensor]:
    """Return ``function(*inputs)`` and its gradients, in float64."""
    leaves = [x.detach().to(torch.float64 if double else x.dtype).requires_grad_() for x in inputs]
    out = function(*leaves)
    return [x.double() for x in (out.detach(), *torch.autograd.grad(out, leaves, d_out.to(out.dtype)))]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[97, 1025, 4096], help="sequence lengths N")
    window = lambda text: None if text == "none" else int(text)  # noqa: E731
    parser.add_argument("--windows", type=window, nargs="+", default=[None, 0, 16, 512], help="windows; none: global")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="dtypes of the inputs")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[16, 32, 64, 128], help="head dimensions D")
    parser.add_argument("--magnitudes", type=float, nargs="+", default=[1.0, 16.0], help="factors on the query")
    parser.add_argument("--verbose", action="store_true", help="print every case, not the failed ones alone")
    parser.add_argument("--output", type=Path, help="write all errors to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
