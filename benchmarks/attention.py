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
import subprocess
import sys
import time
from pathlib import Path

# name: B, H, N, D, window
CASES = {
    "w512": (1, 16, 40320, 64, 512),
    "w1120": (1, 16, 40320, 64, 1120),
    "global": (1, 16, 40320, 64, None),
    "d128-w512": (1, 16, 40320, 128, 512),
    "d32-global": (1, 16, 40320, 32, None),
}
PEERS = {"fa2": "FlashAttention-2", "cudnn": "cuDNN", "flex": "FlexAttention"}
LABELS = {"ours": "this package", **PEERS}
QUANTITIES = {"forward_ms": "forward", "backward_ms": "backward", "forward_backward_ms": "forward + backward"}


def main() -> None:
    """Measure or read the rows, print them, write and draw them."""
    arguments = parse_arguments()
    if arguments.plot:
        # Before the minutes of measuring.
        import_matplotlib()
    rows = json.loads(arguments.from_json.read_text()) if arguments.from_json else measure(arguments)
    print(table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Verify and time all cases."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("attention.py needs a GPU and found none. Run it on one, or draw earlier results with --from-json.")
    # Needs Triton and a GPU.
    import attention_peers as peers

    provenance = {**peers.versions(), "commit": commit(), "repetitions_ms": arguments.repetitions}
    began = time.monotonic()
    rows = []
    for case in arguments.cases:
        for name in ["ours", *arguments.peers]:
            try:
                result = peers.measure(*CASES[case], name, arguments.repetitions)
            except Exception as error:
                # A peer that cannot run is a result too.
                result = {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}
            shape = dict(zip(("batch", "heads", "length", "head_dim", "window"), CASES[case], strict=True))
            rows.append({"case": case, "implementation": name, **shape, **result, **provenance})
            note = result.get("skipped", f"{result.get('forward_backward_ms', {}).get('p50', 0.0):.2f} ms")
            print(f"{time.monotonic() - began:6.1f} s {case} {name}: {note}", file=sys.stderr, flush=True)
    return rows


def commit() -> str:
    """Return the commit of this checkout, with a mark if files differ from it; empty outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def table(rows: list[dict]) -> str:
    """Lay the rows out as text: medians, ratios to ours, peak memory, errors."""
    own = {row["case"]: row for row in rows if row["implementation"] == "ours"}
    lines = [f"{'case':12}{'implementation':18}{'forward':>16}{'backward':>16}{'both':>16}{'peak GB':>9}{'error':>10}"]
    for row in rows:
        start = f"{row['case']:12}{LABELS[row['implementation']]:18}"
        if "skipped" in row:
            lines.append(f"{start}{row['skipped']}")
            continue
        cells = [cell(row, own.get(row["case"], {}), name) for name in QUANTITIES]
        worst = max(row["errors"].values())
        lines.append(f"{start}{''.join(cells)}{row['peak_bytes'] / 1e9:9.2f}{worst:10.1e}")
    if rows:
        lines.append(f"{rows[0]['gpu']}, torch {rows[0]['torch']}, Triton {rows[0]['triton']}, {rows[0]['commit']}")
    return "\n".join(lines)


def cell(row: dict, own: dict, quantity: str) -> str:
    """Return a median, and its ratio to ours for a peer."""
    median = row[quantity]["p50"]
    ratio = f"({median / own[quantity]['p50']:.2f}x)" if row is not own and quantity in own else ""
    return f"{median:8.3f} {ratio:>7}"


def import_matplotlib():
    """Return ``matplotlib.pyplot``, or stop with what to do."""
    try:
        import matplotlib
    except ImportError:
        sys.exit(
            "--plot needs matplotlib, which is not installed. Install it (pip install matplotlib), or measure with "
            "--output here and draw with --from-json and --plot where it is."
        )
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(rows: list[dict], path: Path) -> None:
    """Draw one panel a case: stacked medians of forward and backward, ours and each peer's, losses included."""
    pyplot = import_matplotlib()
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = pyplot.subplots(1, len(cases), figsize=(2.6 * len(cases) + 0.6, 4.2), squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        found = [row for row in rows if row["case"] == case]
        for position, row in enumerate(found):
            color = "tab:orange" if row["implementation"] == "ours" else "tab:gray"
            if "skipped" in row:
                axis.annotate("n/a", (position, 0.0), ha="center", va="bottom", color="tab:gray")
                continue
            forward, backward = (row[name]["p50"] for name in ("forward_ms", "backward_ms"))
            axis.bar(position, forward, color=color)
            axis.bar(position, backward, bottom=forward, color=color, alpha=0.55)
            axis.annotate(f"{forward + backward:.3g}", (position, forward + backward), ha="center", va="bottom")
        axis.set_xticks(range(len(found)), [LABELS[row["implementation"]] for row in found], rotation=60, ha="right")
        window = "global" if found[0]["window"] is None else f"window {found[0]['window']}"
        axis.set_title(f"D {found[0]['head_dim']}, {window}", fontsize=10)
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("median ms, backward (pale) on forward")
    first = rows[0]
    figure.suptitle(
        f"Attention, bf16, B {first['batch']}, H {first['heads']}, N {first['length']}: {first['gpu']}, "
        f"torch {first['torch']}, Triton {first['triton']}",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="shapes (default: all)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="peers (default: all)")
    parser.add_argument("--repetitions", type=int, default=200, help="milliseconds each quantity is repeated for")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file")
    parser.add_argument("--from-json", type=Path, help="measure nothing, take the rows of this file")
    parser.add_argument("--plot", type=Path, help="draw the rows to this PNG file (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
