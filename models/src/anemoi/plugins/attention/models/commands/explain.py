# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which backend can run on this machine, and why another can't."""

import argparse
import json

from anemoi.utils.cli import Command

from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..environment import VARIABLES
from ..environment import requested_backend


class ExplainCommand(Command):
    """List the attention backends and whether each can run on this machine."""

    def add_arguments(self, command_parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        command_parser.epilog = "example:\n  anemoi-attention explain --device cuda --json"
        command_parser.add_argument(
            "--device", choices=["cpu", "cuda"], help="device to run on (default: what the machine has)"
        )
        command_parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> None:
        """Print one line a backend."""
        # Imports torch, which takes seconds: --help does without.
        from ..attention_backends import backends

        rows = []
        for kind in (TRANSFORMER, GRAPH_TRANSFORMER):
            for name, backend in backends(kind).items():
                available, reason = backend.available(args.device)
                rows.append({"kind": kind, "backend": name, "available": available, "reason": reason})
        environment = {VARIABLES[kind]: requested_backend(kind) for kind in VARIABLES}
        if args.json:
            print(json.dumps({"backends": rows, "environment": environment}, indent=2))
            return
        for row in rows:
            print(f"{row['kind']:18} {row['backend']:30} {'yes' if row['available'] else 'no':4} {row['reason']}")
        for variable, value in environment.items():
            print(f"{variable} = {value or '(not set)'}")


command = ExplainCommand
