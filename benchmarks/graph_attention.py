# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Time graph attention beside its peers on this GPU, forward and backward; what is not right is not timed.

Graphs have the size and locality of Anemoi's encoder, processor and decoder. Peers: the Triton kernel and the message
passing (PyG) of the installed anemoi-models. Each is timed with edges given, and with the edge projection as part of it
("attributes"), where ours is factorised and "projected" is ours behind the linear layer. Every implementation is
verified against float64 first, output and all gradients. Example::

    python benchmarks/graph_attention.py --output graph_attention.json
    python benchmarks/graph_attention.py --from-json graph_attention.json --plot graph_attention.png
    python benchmarks/graph_attention.py --candidates --output graph_candidates.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report

GRAPHS = ("encoder", "decoder", "processor")
FORMS = ("given", "attributes")
DTYPES = ("bfloat16", "float16", "float32")
LABELS = {"ours": "this package", "projected": "ours, projected", "released": "anemoi-models", "pyg": "PyG"}


def main() -> None:
    """Measure or read the rows, print them, write and draw them; or try candidates."""
    arguments = parse_arguments()
    if arguments.plot:
        # Before the minutes of measuring.
        report.import_matplotlib()
    if arguments.candidates:
        try_candidates(arguments)
        return
    rows = json.loads(arguments.from_json.read_text()) if arguments.from_json else measure(arguments)
    print(report.table(rows, LABELS))
    if arguments.plot:
        report.plot(rows, arguments.plot, LABELS, title, "Graph attention, H 16, C 64")


def check_device(arguments: argparse.Namespace) -> None:
    """Stop where the kernels cannot run; forbid reduced precision in what is compared."""
    if arguments.device == "cuda":
        report.require_gpu("graph_attention.py")
    elif os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("--device cpu interprets the kernels. Set TRITON_INTERPRET=1, and small --latitudes such as 4 6.")
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def try_candidates(arguments: argparse.Namespace) -> None:
    """Check and time candidate configurations."""
    check_device(arguments)
    import graph_candidates

    graph_candidates.run(
        arguments.cases,
        tuple(arguments.latitudes),
        arguments.device,
        arguments.seed,
        arguments.workers,
        arguments.budget,
        arguments.output,
    )


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Verify and time all implementations."""
    check_device(arguments)
    # Needs Triton and a GPU.
    import graph_peers as peers

    return report.collect(list_jobs(arguments), measure_one(peers, arguments), arguments.output)


def list_jobs(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """List what identifies the rows; those of one case follow each other."""
    for dtype in arguments.dtypes:
        for graph in arguments.cases:
            for form in FORMS:
                job = {"case": f"{graph} {form} {dtype}", "graph": graph, "form": form, "dtype": dtype}
                job |= {"seed": arguments.seed, "repetitions_ms": arguments.repetitions}
                for name in ("ours", *(["projected"] if form == "attributes" else []), *arguments.peers):
                    yield job | {"implementation": name}


def measure_one(peers: Any, arguments: argparse.Namespace) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what measures a row; it keeps the inputs and the oracle's results of the last case."""
    kept: dict[str, Any] = {"case": None}

    def run(job: dict[str, Any]) -> dict[str, Any]:
        if job["case"] != kept["case"]:
            kept.clear()
            problem = peers.prepare(
                job["graph"], job["dtype"], tuple(arguments.latitudes), arguments.device, arguments.seed
            )
            kept.update(problem=problem, expected=peers.exact(job["form"], problem), case=job["case"])
        problem = kept["problem"]
        sizes = {"num_src": problem.sizes[0], "num_dst": problem.sizes[1], "num_edges": problem.layout.num_edges}
        return sizes | peers.measure(
            job["implementation"], job["form"], problem, kept["expected"], job["dtype"], arguments.repetitions
        )

    return run


def title(row: dict[str, Any]) -> str:
    """Name the panel of a row."""
    form = "edges given" if row["form"] == "given" else "with edge projection"
    return f"{row['graph']}, {form}\n{row['dtype']}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [name for name in LABELS if name not in ("ours", "projected")]
    parser.add_argument("--cases", nargs="+", choices=GRAPHS, default=list(GRAPHS), help="graphs (default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="dtypes (default: all)")
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, help="peers (default: all)")
    parser.add_argument(
        "--latitudes", type=int, nargs=2, default=[96, 360], help="of hidden and data grid, a hemisphere"
    )
    parser.add_argument("--repetitions", type=int, default=100, help="milliseconds each quantity is repeated for")
    parser.add_argument("--candidates", action="store_true", help="check and time candidate configurations instead")
    parser.add_argument("--budget", type=float, default=220.0, help="seconds after which no more candidates are timed")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check candidates")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a trial in the interpreter")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % (1 << 31), help="of the inputs; new ones by default"
    )
    parser.add_argument("--output", type=Path, help="write the results to this JSON file, after each of them")
    parser.add_argument("--from-json", type=Path, help="measure nothing, take the rows of this file")
    parser.add_argument("--plot", type=Path, help="draw the rows to this PNG file (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
