# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the benchmarks share: rows of results, written as they come, laid out as text and drawn.

A row is a dictionary with ``case`` and ``implementation``, either ``skipped`` (why there is no number) or ``errors``,
``peak_bytes`` and the percentiles of ``forward_ms``, ``backward_ms`` and ``forward_backward_ms``, and where and with
what it was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path
from typing import Any

QUANTITIES = {"forward_ms": "forward", "backward_ms": "backward", "forward_backward_ms": "forward + backward"}


def require_gpu(script: str) -> None:
    """Stop with what to do where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"{script} needs a GPU and found none. Run it on one, or see --help for what works without.")


def provenance() -> dict[str, str]:
    """Return what numbers depend on: device, releases, commit."""
    import torch
    import triton

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "commit": commit()}


def commit() -> str:
    """Return the commit of this checkout, marked if files differ from it; of a copy, what BENCHMARK_COMMIT says."""
    if "BENCHMARK_COMMIT" in os.environ:
        return os.environ["BENCHMARK_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def write(content: Any, path: Path | None) -> None:
    """Write JSON in place of what an earlier call wrote, never half of it."""
    if path is None:
        return
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(path)


def collect(
    jobs: Iterable[dict[str, Any]], measure: Callable[[dict[str, Any]], dict[str, Any]], output: Path | None
) -> list[dict[str, Any]]:
    """Measure one job after another; whenever the run is cut, ``output`` holds what was measured until then.

    Parameters
    ----------
    jobs : iterable of dict
        What identifies each row: ``case``, ``implementation``, and what else belongs into it.
    measure : callable
        Takes a job, returns the rest of its row. What it raises becomes the row's ``skipped``.
    output : Path or None
        JSON file.
    """
    rows: list[dict[str, Any]] = []
    origin, began = provenance(), time.monotonic()
    for job in jobs:
        try:
            result = measure(job)
        except Exception as error:
            # An implementation that cannot run is a result too.
            result = {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}
        rows.append({**job, **result, **origin})
        write(rows, output)
        note = result.get("skipped") or f"{result.get('forward_backward_ms', {}).get('p50', 0.0):.2f} ms"
        progress = f"{time.monotonic() - began:6.1f} s {job['case']} {job['implementation']}: {note}"
        print(progress, file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]], labels: dict[str, str]) -> str:
    """Lay the rows out as text: medians, ratios to ours, peak memory, errors."""
    own = {row["case"]: row for row in rows if row["implementation"] == "ours"}
    width = 2 + max([len(row["case"]) for row in rows], default=10)
    heads = "".join(f"{name:>16}" for name in ("forward", "backward", "both"))
    lines = [f"{'case':{width}}{'implementation':18}{heads}{'peak GB':>9}{'error':>10}"]
    for row in rows:
        start = f"{row['case']:{width}}{labels[row['implementation']]:18}"
        if "skipped" in row:
            lines.append(f"{start}{row['skipped']}")
            continue
        cells = [_cell(row, own.get(row["case"], {}), name) for name in QUANTITIES]
        worst = max(row["errors"].values())
        lines.append(f"{start}{''.join(cells)}{row['peak_bytes'] / 1e9:9.2f}{worst:10.1e}")
    if rows:
        lines.append(heading(rows[0]))
    return "\n".join(lines)


def heading(row: dict[str, Any]) -> str:
    """Return where the numbers come from."""
    return f"{row['gpu']}, torch {row['torch']}, Triton {row['triton']}, {row['commit']}"


def _cell(row: dict, own: dict, quantity: str) -> str:
    """Return a median, and its ratio to ours for a peer."""
    median = row[quantity]["p50"]
    ratio = f"({median / own[quantity]['p50']:.2f}x)" if row is not own and quantity in own else ""
    return f"{median:8.3f} {ratio:>7}"


def import_matplotlib() -> Any:
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


def plot(
    rows: list[dict[str, Any]], path: Path, labels: dict[str, str], title: Callable[[dict[str, Any]], str], what: str
) -> None:
    """Draw one panel a case: stacked medians of forward and backward, ours and each peer's, losses included."""
    pyplot = import_matplotlib()
    cases = list(dict.fromkeys(row["case"] for row in rows))
    columns = min(len(cases), 6)
    lines = -(-len(cases) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(2.6 * columns + 0.6, 4.2 * lines), squeeze=False)
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    for axis, case in zip(axes.flat[: len(cases)], cases, strict=True):
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
        axis.set_xticks(range(len(found)), [labels[row["implementation"]] for row in found], rotation=60, ha="right")
        axis.set_title(title(found[0]), fontsize=10)
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("median ms, backward (pale) on forward")
    figure.suptitle(f"{what}: {heading(rows[0])}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
