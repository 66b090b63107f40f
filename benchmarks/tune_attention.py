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

from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention
from anemoi.plugins.attention.models.triton.attention import calls
from anemoi.plugins.attention.models.triton.attention import configurations
from anemoi.plugins.attention.models.triton.attention import launch

CHECK_LENGTH = 1000


def main() -> None:
    """Compile and verify in parallel, then time one after another."""
    arguments = parse_arguments()
    jobs = [(*parse_case(case), dtype) for case in arguments.cases for dtype in arguments.dtypes]
    jobs = [(shape, direction, text, dtype) for shape, direction, texts, dtype in jobs for text in texts]
    rows = []
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        checks = list(pool.map(verify, jobs))
    for (shape, direction, text, dtype), error in zip(jobs, checks, strict=True):
        row = {"case": shape, "dtype": dtype, "direction": direction, "candidate": text, "error": error}
        if isinstance(error, float) and error < arguments.tolerance:
            function = prepare(shape, direction, text, dtype)[0]
            row["ms"] = round(triton.testing.do_bench(function, warmup=10, rep=60, return_mode="median"), 4)
        rows.append(row)
        print(*shape, dtype, direction, text, row.get("ms", "-"), error, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1))


def verify(job: tuple) -> float | str:
    """Return the largest relative L2 error over what the kernel writes, or why it did not run."""
    shape, direction, text, dtype = job
    _, heads, _, head_dim, window = shape
    try:
        function, tensors, outputs = prepare((1, min(heads, 2), CHECK_LENGTH, head_dim, window), direction, text, dtype)
        function()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    query, key, value = (tensors[name].double().requires_grad_() for name in ("query", "key", "value"))
    out = reference_attention(make_problem(query, key, value, window_size=window))
    gradients = torch.autograd.grad(out, (query, key, value), tensors["d_out"].double())
    expected = dict(zip(("out", "d_query", "d_key", "d_value"), (out, *gradients), strict=True))
    return max(((outputs[name].double() - expected[name]).norm() / expected[name].norm()).item() for name in outputs)


def prepare(shape: tuple, direction: str, text: str, dtype_name: str) -> tuple:
    """Return a function that launches one kernel, its tensors, and what it writes."""
    batch, heads, length, head_dim, window = shape
    dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    names = ("query", "key", "value", "d_out", "out", "d_query", "d_key", "d_value")
    tensors = {
        name: torch.randn(batch, length, heads, head_dim, device="cuda", dtype=dtype).transpose(1, 2) for name in names
    }
    lse, delta = calls.empty_lse(tensors["query"]), calls.empty_lse(tensors["query"])
    limit = -1 if window is None else window
    options = calls.Options(limit, limit, head_dim**-0.5)
    device = tensors["query"].device
    architecture = configurations.architecture_of(device)
    take = lambda *wanted: [tensors[name] for name in wanted]  # noqa: E731
    inputs = take("query", "key", "value")
    kernels = {
        "forward": partial(launch.forward_call, *inputs, *take("out"), lse),
        "backward_query": partial(
            launch.backward_query_call, *take("d_out"), *inputs, *take("out"), lse, delta, *take("d_query")
        ),
        "backward_key_value": partial(
            launch.backward_key_value_call, *take("d_out"), *inputs, lse, delta, *take("d_key", "d_value")
        ),
    }
    # The kernels before the one to be timed run as shipped.
    for before in configurations.DIRECTIONS[: configurations.DIRECTIONS.index(direction)]:
        kernels[before](options, architecture).launch(device)
    name = "explicit_configuration" if text.startswith("g") else "configuration"
    originals = configurations.configuration, configurations.explicit_configuration
    configurations.explicit_configuration = lambda *_, **__: None
    setattr(configurations, name, lambda *_, **__: parse_candidate(text.removeprefix("g")))
    call = kernels[direction](options, architecture)
    configurations.configuration, configurations.explicit_configuration = originals
    written = {"forward": ["out"], "backward_query": ["d_query"], "backward_key_value": ["d_key", "d_value"]}
    outputs = {name: tensors[name].fill_(torch.nan) for name in written[direction]}
    return lambda: call.launch(device), tensors, outputs


def parse_candidate(text: str) -> configurations.Configuration:
    """Read ``128x64w8s3`` and what may follow: ``p`` for pointers, ``r128`` limits registers, ``k`` is resident."""
    match = re.fullmatch(r"(\d+)x(\d+)w(\d+)s(\d+)(p?)(?:r(\d+))?(k?)", text)
    if match is None:
        raise ValueError(
            f"{text!r} is no candidate. Allowed: <block_m>x<block_n>w<warps>s<stages>, such as 128x64w8s3."
        )
    registers = int(match[6]) if match[6] else None
    return configurations.Configuration(*map(int, match.groups()[:4]), not match[5], registers, bool(match[7]))


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
