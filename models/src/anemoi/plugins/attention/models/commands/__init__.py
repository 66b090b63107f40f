# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Subcommands of ``anemoi-attention``: one module each here, and those that other packages register."""

import os
from importlib.metadata import entry_points
from typing import Any

from anemoi.utils.cli import Command
from anemoi.utils.cli import Failed
from anemoi.utils.cli import register_commands

GROUP = "anemoi.plugins.attention.commands"
"""Entry-point group in which the other packages register their subcommands."""


def load_commands() -> dict[str, Command]:
    """Return the subcommands by name; one that fails to import says so when it is called."""
    commands: dict[str, Command] = register_commands(
        os.path.dirname(__file__), __name__, lambda module: module.command(), fail=Failed
    )
    for entry_point in entry_points(group=GROUP):
        factory: Any
        try:
            factory = entry_point.load()
        except ImportError as error:
            commands[entry_point.name] = Failed(entry_point.name, error)
        else:
            commands[entry_point.name] = factory()
    return commands
