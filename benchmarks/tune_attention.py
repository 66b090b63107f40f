# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Time candidate configurations of the attention kernels on this GPU, each verified first.

A candidate is written ``<block_m>x<block_n>w<warps>s<stages>``, with a leading ``g`` for the kernels with explicit
asynchrony. Example::

    python benchmarks/tune_attention.py 1,16,40320,64,512:forward:64x64w4s3,128x64w8s3 --output tune.json
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import triton
from torch import Tensor

from anemoi.plugins.attention.models.triton.attention.configurations import Configuration
from anemoi.plugins.attention.models.triton.attention.tuning import CHECK_LENGTH
from anemoi.plugins.attention.models.triton.attention.tuning import Trial


def main() -> None:
    """Compile and verify in parallel, then time one after another."""
    arguments = parse_arguments()
    jobs = [(*parse_case(case), dtype) for case in arguments.cases for dtype in arguments.dtypes]
    jobs = [(shape, direction, text, dtype) for shape, direction, texts, dtype in jobs for text in texts]
    rows = []
    trial, timed = None, None
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        checks = list(pool.map(verify, jobs))
    for (shape, direction, text, dtype), error in zip(jobs, checks, strict=True):
        row = {"case": shape, "dtype": dtype, "direction": direction, "candidate": text, "error": error}
        if isinstance(error, float) and error < arguments.tolerance:
            *sizes, window = shape
            if (shape, dtype) != timed:
                # One set of tensors at a time.
                trial, timed = Trial(*draw(tuple(sizes), dtype), window), (shape, dtype)
            trial.run_before(direction)
            launch = partial(trial.call(direction, parse_candidate(text)).launch, trial.device)
            row["ms"] = round(triton.testing.do_bench(launch, warmup=10, rep=60, return_mode="median"), 4)
        rows.append(row)
        print(*shape, dtype, direction, text, row.get("ms", "-"), error, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1))


def verify(job: tuple) -> float | str:
    """Return the largest relative L2 error over what the kernel writes, or why it did not run."""
    (_, heads, _, head_dim, window), direction, text, dtype = job
    try:
        trial = Trial(*draw((1, min(heads, 2), CHECK_LENGTH, head_dim), dtype), window)
        return trial.error(direction, parse_candidate(text), trial.expected())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"


def draw(shape: tuple[int, int, int, int], dtype: str) -> list[Tensor]:
    """Draw query, key and value in the layout of a linear layer's rows."""
    batch, heads, length, head_dim = shape
    torch.manual_seed(0)
    rows = (batch, length, heads, head_dim)
    return [torch.randn(rows, device="cuda", dtype=getattr(torch, dtype)).transpose(1, 2) for _ in range(3)]


def parse_candidate(text: str) -> Configuration:
    """Read ``128x64w8s3`` and what may follow: ``p`` for pointers, ``r128`` limits registers, ``k`` is resident."""
    match = re.fullmatch(r"(g?)(\d+)x(\d+)w(\d+)s(\d+)(p?)(?:r(\d+))?(k?)", text)
    if match is None:
        raise ValueError(
            f"{text!r} is no candidate. Allowed: <block_m>x<block_n>w<warps>s<stages>, such as 128x64w8s3."
        )
    registers = int(match[7]) if match[7] else None
    sizes = [int(group) for group in match.groups()[1:5]]
    return Configuration(*sizes, not match[6], registers, explicit=bool(match[1]), resident=bool(match[8]))


def parse_case(text: str) -> tuple[tuple, str, list[str]]:
    """Read ``B,H,N,D,window:direction:candidate,candidate``; window 0 or more, or ``none``."""
    shape, direction, candidates = text.split(":")
    *sizes, window = shape.split(",")
    return (*map(int, sizes), None if window == "none" else int(window)), direction, candidates.split(",")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", help="B,H,N,D,window:direction:candidate,candidate,...")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], help="dtypes of the inputs")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile")
    parser.add_argument("--tolerance", type=float, default=1e-2, help="relative error up to which a kernel is timed")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
