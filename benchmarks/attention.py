# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Time the fused attention beside its peers on this GPU, forward and backward; what is not right is not timed.

Peers: FlashAttention-2 and cuDNN as torch ships them, and FlexAttention compiled. Every implementation is verified
against float64 first, output and gradients of one head at full length. Times are percentiles of device events (p20,
p50, p80); the table shows the median, the peak memory, and how many times as long each peer takes (below 1: the peer is
faster). Example::

    python benchmarks/attention.py --output attention.json
    python benchmarks/attention.py --from-json attention.json --plot attention.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import report

# name: B, H, N, D, window
CASES = {
    "w512": (1, 16, 40320, 64, 512),
    "w1120": (1, 16, 40320, 64, 1120),
    "global": (1, 16, 40320, 64, None),
    "d128-w512": (1, 16, 40320, 128, 512),
    "d32-global": (1, 16, 40320, 32, None),
}
SHAPE = ("batch", "heads", "length", "head_dim", "window")
DTYPES = ("bfloat16", "float16")
PEERS = {"fa2": "FlashAttention-2", "cudnn": "cuDNN", "flex": "FlexAttention"}
LABELS = {"ours": "this package", **PEERS}


def main() -> None:
    """Measure or read the rows, print them, write and draw them."""
    arguments = parse_arguments()
    if arguments.plot:
        # Before the minutes of measuring.
        report.import_matplotlib()
    rows = json.loads(arguments.from_json.read_text()) if arguments.from_json else measure(arguments)
    print(report.table(rows, LABELS))
    if arguments.plot:
        report.plot(rows, arguments.plot, LABELS, title, description(rows[0]))


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Verify and time all cases."""
    report.require_gpu("attention.py")
    # Needs Triton and a GPU.
    import attention_peers as peers

    jobs = [
        {
            "case": case if dtype == DTYPES[0] else f"{case}-{dtype}",
            "implementation": name,
            **dict(zip(SHAPE, CASES[case], strict=True)),
            "dtype": dtype,
            "repetitions_ms": arguments.repetitions,
        }
        for dtype in arguments.dtypes
        for case in arguments.cases
        for name in ["ours", *arguments.peers]
    ]
    return report.collect(
        jobs,
        lambda job: peers.measure(
            tuple(job[name] for name in SHAPE), job["dtype"], job["implementation"], arguments.repetitions
        ),
        arguments.output,
    )


def title(row: dict) -> str:
    """Name the panel of a row."""
    window = "global" if row["window"] is None else f"window {row['window']}"
    return f"D {row['head_dim']}, {window}" + ("" if row.get("dtype", DTYPES[0]) == DTYPES[0] else f", {row['dtype']}")


def description(row: dict) -> str:
    """Say what all panels share."""
    return f"Attention, bf16 unless noted, B {row['batch']}, H {row['heads']}, N {row['length']}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="shapes (default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[DTYPES[0]], help="dtypes (default: bfloat16)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="peers (default: all)")
    parser.add_argument("--repetitions", type=int, default=200, help="milliseconds each quantity is repeated for")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file, after each of them")
    parser.add_argument("--from-json", type=Path, help="measure nothing, take the rows of this file")
    parser.add_argument("--plot", type=Path, help="draw the rows to this PNG file (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
