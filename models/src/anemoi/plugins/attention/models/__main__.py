# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Tools of the attention plugins for Anemoi.

Example: ``anemoi-attention explain`` lists the backends and which of them can run on this machine.
"""

from importlib.metadata import version

from anemoi.utils.cli import cli_main

from .commands import load_commands


def main() -> None:
    """Run the command line."""
    cli_main(version("anemoi-plugins-attention-models"), __doc__ or "", load_commands())


if __name__ == "__main__":
    main()
