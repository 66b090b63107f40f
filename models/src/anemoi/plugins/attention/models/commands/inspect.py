# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What attention a checkpoint holds, and whether it can run here."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from anemoi.utils.cli import Command

from ._failure import exit_with_message

if TYPE_CHECKING:
    from ..checkpoint.describe import Description

EPILOG = """\
The checkpoint is not loaded: no package that it names has to be installed, and no code in it is run.

example:
  anemoi-attention inspect inference-last.ckpt --json"""

_COLUMNS = ("layer", "kind", "heads", "head dim", "window", "options", "backend", "runs here")


class InspectCommand(Command):
    """List the attention layers of a checkpoint, and whether each can run on this machine."""

    def add_arguments(self, command_parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        command_parser.epilog = EPILOG
        command_parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="an inference checkpoint")
        command_parser.add_argument(
            "--device", choices=["cpu", "cuda"], help="device to run on (default: what the machine has)"
        )
        command_parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> None:
        """Print one line a layer, then what does not run here and why."""
        with exit_with_message("inspect"):
            from ..checkpoint.describe import describe

            description = describe(args.checkpoint)
        rows = _rows(description, args.device)
        missing = sorted({symbol for layer in description.layers for symbol in layer.missing()})
        if args.json:
            result = {
                "checkpoint": str(args.checkpoint),
                "layers_from": "metadata" if description.problem else "model",
                "problem": description.problem,
                "layers": rows,
                "not_installed": missing,
            }
            print(json.dumps(result, indent=2))
            return
        if description.problem:
            print(f"{description.problem}\nThis is what the configuration in its metadata says:\n")
        _print_table(rows)
        for line in _explanations(rows, missing):
            print(line)


def _rows(description: "Description", device: str | None) -> list[dict[str, Any]]:
    from ..checkpoint.describe import verdict

    rows = []
    for index, layer in enumerate(description.layers):
        reasons, usable = verdict(layer, device)
        spec = layer.spec
        rows.append(
            {
                "layer": spec.path,
                "count": description.counts[index] if description.counts else 1,
                "kind": spec.kind,
                "heads": spec.num_heads,
                "head_dim": spec.head_dim,
                "window": list(spec.window_size) if isinstance(spec.window_size, tuple) else spec.window_size,
                "options": spec.options(),
                "backend": layer.backend,
                "runs_here": not reasons,
                "reasons": reasons,
                "usable_here": usable,
            }
        )
    return rows


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = [_COLUMNS]
    for row in rows:
        options = ", ".join(key if value is True else f"{key}={value}" for key, value in row["options"].items())
        times = f" (x {row['count']})" if row["count"] != 1 else ""
        table.append(
            (
                row["layer"] + times,
                row["kind"],
                str(row["heads"]),
                str(row["head_dim"]),
                "-" if row["window"] is None else str(row["window"]),
                options or "-",
                row["backend"],
                "yes" if row["runs_here"] else "no",
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _explanations(rows: list[dict[str, Any]], missing: list[str]) -> list[str]:
    """Say once for each backend why it does not run, and what does."""
    if not rows:
        return ["The model has no attention layer."]
    lines = dict.fromkeys(
        f"{row['backend']} cannot run {row['kind']} layers here: {'; '.join(row['reasons'])}. "
        f"Usable here: {', '.join(row['usable_here']) or 'none'}."
        for row in rows
        if row["reasons"]
    )
    if missing:
        lines[f"Named by the checkpoint and not installed here: {', '.join(missing)}."] = None
    return ["", *lines] if lines else []


command = InspectCommand
