# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Test pairs of released hosts, each in its own environment, and write the table of the documentation.

Each release builds attention layers and a model with its own code. These packages then open them, swap the attention,
and the answers are compared. Example::

    python compat/verify.py --pairs 0.3.1 0.19.0
    python compat/verify.py --table docs/compatibility.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from check import RESULT
from environments import Environment
from environments import run_python
from packaging.version import Version
from releases import PAIRS
from releases import Pair

HERE = Path(__file__).parent
TOLERANCE = 1e-5
VARIABLES = {"ANEMOI_INFERENCE_TRANSFORMER_ATTENTION_BACKEND": "triton_attention"}
HEAD = (
    "anemoi-models",
    "anemoi-inference",
    "its layers, on it",
    "its transformer layers, on today's",
    "forecast, by variable",
    "forecast, by run configuration",
)


class Mismatch(AssertionError):
    """An answer is not what it is to be."""


def main() -> None:
    """Test pairs and write the table."""
    arguments = parse_arguments()
    rows = []
    for pair in PAIRS:
        if pair.models in arguments.pairs:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(pair, check_pair(pair, Path(folder))))
            print(*rows[-1], sep=", ", flush=True)
    if arguments.table:
        write_table(rows, arguments.table)


def check_pair(pair: Pair, folder: Path) -> dict[str, float | None]:
    """Build with one pair, open with these packages, and return the largest difference of each test.

    Parameters
    ----------
    pair : Pair
        The releases.
    folder : Path
        Where to put the checkpoints.

    Raises
    ------
    Mismatch
        If an answer is off by more than ``TOLERANCE``, or a log line is missing.
    """
    environment = Environment(pair)
    environment.make()
    environment.run(HERE / "build.py", str(folder))
    check = HERE / "check.py"
    found = {
        "layers": result(environment.run(check, str(folder), "layers")),
        "transformer_layers": result(run_python(Path(sys.executable), check, str(folder), "transformer_layers")),
    }
    worst: dict[str, float | None] = {name: _worst_layer(pair, name, layers) for name, layers in found.items()}
    forecast = result(environment.run(check, str(folder), "by_variable", **VARIABLES))
    worst["by_variable"] = _off(pair, "by_variable", forecast["forecast"])
    _require_log(pair, forecast["log"], f"from {next(iter(VARIABLES))}")
    if Version(pair.models) < Version("0.4"):
        _require_log(pair, forecast["log"], "of anemoi-models before 0.4 ignored")
    worst["by_configuration"] = None
    if pair.takes_options:
        forecast = result(environment.run(check, str(folder), "by_configuration"))
        worst["by_configuration"] = _off(pair, "by_configuration", forecast["forecast"])
        _require_log(pair, forecast["log"], "from runner.attention.transformer")
    return worst


def result(printed: str) -> dict[str, Any]:
    """Return what ``check.py`` found, from all that was printed."""
    (line,) = (line for line in printed.splitlines() if line.startswith(RESULT))
    found: dict[str, Any] = json.loads(line.removeprefix(RESULT))
    return found


def _worst_layer(pair: Pair, what: str, layers: dict[str, dict[str, float | None]]) -> float:
    """Return the largest difference; what the release ignores is left out of the comparison with its answers."""
    differences = []
    for name, row in layers.items():
        if "definition" in row:
            differences.append(row["definition"])
        if pair.honours(name):
            differences.append(row["released"])
    return _off(pair, what, *differences)


def _off(pair: Pair, what: str, *differences: float | None) -> float:
    # Written so that NaN fails.
    if not differences or not all(d is not None and d < TOLERANCE for d in differences):
        raise Mismatch(f"{pair.models}, {what}: off by {differences}, allowed {TOLERANCE}")
    return max(d for d in differences if d is not None)


def _require_log(pair: Pair, lines: Iterable[str], text: str) -> None:
    if not any(text in line for line in lines):
        raise Mismatch(f"{pair.models}: no line of the log says {text!r}: {list(lines)}")


def row(pair: Pair, worst: dict[str, float | None]) -> tuple[str, ...]:
    """Return a row of the table."""
    cells = ("not offered" if value is None else f"{value:.0e}" for value in worst.values())
    return (pair.models, pair.inference, *cells)


def write_table(rows: list[tuple[str, ...]], path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    releases = [pair.models for pair in PAIRS]
    parser.add_argument("--pairs", nargs="+", choices=releases, default=releases, help="by release of anemoi-models")
    parser.add_argument("--table", type=Path, help="write the table to this CSV file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
