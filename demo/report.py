# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The table that ends the demo, and the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from score import VARIABLES
from score import Score
from steps import Backend

CAVEAT = (
    "These are a few days of one winter, and a model that trained for 300 steps: they show that the chain works, "
    "not how skilful a model of this kind is."
)


@dataclass(frozen=True)
class Summary:
    """Everything the demo found out."""

    backends: dict[str, list[Backend]]
    """By the title of the run."""
    largest_difference: dict[str, float]
    scores: list[Score]
    checks: dict[str, bool]
    seconds: dict[str, float]
    dates: list[str]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(self.checks.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``summary.json``."""
        return {
            "backends": {run: [asdict(backend) for backend in backends] for run, backends in self.backends.items()},
            "largest_difference": {
                name: {"value": value, "unit": VARIABLES[name]} for name, value in self.largest_difference.items()
            },
            "scores": [{**asdict(item), "unit": VARIABLES[item.variable], "gain": item.gain} for item in self.scores],
            "checks": self.checks,
            "seconds": {step: round(value, 1) for step, value in self.seconds.items()},
            "initial_dates": self.dates,
            "note": CAVEAT,
        }


def write_summary(summary: Summary, path: Path) -> None:
    """Write ``summary.json``."""
    path.write_text(json.dumps(summary.to_json(), indent=2) + "\n")


def format_table(summary: Summary) -> str:
    """Return the table as text."""
    blocks = [
        _backends(summary.backends),
        _differences(summary.largest_difference),
        _scores(summary.scores),
        _checks(summary.checks),
        CAVEAT,
        "Seconds: " + ", ".join(f"{step} {seconds:.0f}" for step, seconds in summary.seconds.items()),
    ]
    return "\n\n".join(blocks)


def _backends(backends: dict[str, list[Backend]]) -> str:
    lines = ["Backend of every attention layer, as the log of each run says"]
    lines.append(f"  {'run':22}{'layers':28}{'backend':32}chosen by")
    for run, entries in backends.items():
        for entry in entries:
            layers = f"{entry.num_layers} x {entry.kind}"
            lines.append(f"  {run:22}{layers:28}{entry.name:32}{entry.source}")
    return "\n".join(lines)


def _differences(differences: dict[str, float]) -> str:
    lines = ["Largest difference between the three forecasts, over all dates, leads and points"]
    lines += [f"  {name:8}{value:12.2e} {VARIABLES[name]}" for name, value in differences.items()]
    if not any(differences.values()):
        lines.append(
            "  Not a digit differs: on a CPU, and on so few nodes, the torch path of triton_attention is one call of\n"
            "  the kernel that scaled_dot_product_attention calls, with the same mask."
        )
    return "\n".join(lines)


def _scores(scores: Sequence[Score]) -> str:
    leads = sorted({item.lead_hours for item in scores})
    by_key = {(item.variable, item.lead_hours): item for item in scores}
    count = {lead: by_key[next(iter(VARIABLES)), lead].num_forecasts for lead in leads}
    lines = ["Root-mean-square error on dates that training did not see: forecast / persistence (gain)"]
    lines.append(f"  {'':14}" + "".join(f"{f'+{lead} h (n={count[lead]})':26}" for lead in leads))
    for name, unit in VARIABLES.items():
        cells = [by_key[name, lead] for lead in leads]
        digits = 0 if unit == "Pa" else 2
        row = [f"{cell.forecast:.{digits}f} / {cell.persistence:.{digits}f} ({cell.gain:+.0%})" for cell in cells]
        lines.append(f"  {f'{name} ({unit})':14}" + "".join(f"{cell:26}" for cell in row))
    return "\n".join(lines)


def _checks(checks: dict[str, bool]) -> str:
    return "\n".join(["Checks", *(f"  {'yes' if held else 'NO':5}{name}" for name, held in checks.items())])
