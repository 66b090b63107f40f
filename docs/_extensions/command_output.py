# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Directive ``.. command-output:: COMMAND``: the command and what it prints when the site is built."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


class CommandOutput(Directive):
    """Run a command; the build fails if the command does."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the literal block."""
        command = self.arguments[0]
        # The width decides where argparse breaks lines. Commands are those of the environment that builds the site.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            shlex.split(command),
            env={**os.environ, "COLUMNS": "100", "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise self.error(f"'{command}' ended with status {done.returncode}:\n{done.stderr}")
        text = f"$ {command}\n{done.stdout.rstrip()}"
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-output", CommandOutput)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
