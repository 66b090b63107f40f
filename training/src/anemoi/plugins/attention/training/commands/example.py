# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Write the shipped example, data included, into a folder of the user's."""

import argparse
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from anemoi.utils.cli import Command

EXAMPLE = "anemoi.plugins.attention.training.example"
SUFFIXES = (".nc", ".yaml")

NEXT_STEPS = """\
Next:
  cd {directory}
  anemoi-datasets create recipe.yaml blizzard-1996.zarr
  anemoi-training train --config-name=attention_blizzard
  anemoi-inference run run.yaml"""


def example_files() -> list[Traversable]:
    """Return the files of the example: data, dataset recipe and run configurations for inference."""
    return sorted((item for item in files(EXAMPLE).iterdir() if item.name.endswith(SUFFIXES)), key=lambda f: f.name)


def write_example(directory: Path, overwrite: bool = False) -> list[Path]:
    """Copy the example into a folder.

    Parameters
    ----------
    directory : Path
        The folder; made if it does not exist.
    overwrite : bool
        Whether files of the same names may be replaced. Files that are as the example has them are no obstacle.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    FileExistsError
        If a file of the same name has other content and ``overwrite`` is off, or if a link or a folder has that name;
        nothing is written then.
    NotADirectoryError
        If the path is that of a file, or goes through one.
    """
    sources = example_files()
    targets = [directory / source.name for source in sources]
    blocked = next((path for path in (directory, *directory.parents) if path.exists() and not path.is_dir()), None)
    if blocked is not None:
        raise NotADirectoryError(f"Cannot write the example to {directory}: {blocked} is a file. Name a folder.")
    # Writing through a link would change a file somewhere else.
    unsafe = [target.name for target in targets if target.is_symlink() or target.is_dir()]
    if unsafe:
        raise FileExistsError(
            f"Cannot write the example to {directory}: {', '.join(unsafe)} there is a link or a folder. "
            "Name another folder, or move it away."
        )
    existing = [
        target.name
        for source, target in zip(sources, targets, strict=True)
        if target.exists() and target.read_bytes() != source.read_bytes()
    ]
    if existing and not overwrite:
        raise FileExistsError(
            f"Cannot write the example to {directory}: {', '.join(existing)} already there, with other content. "
            "Name another folder, or replace them with --overwrite."
        )
    directory.mkdir(parents=True, exist_ok=True)
    for source, target in zip(sources, targets, strict=True):
        target.write_bytes(source.read_bytes())
    return targets


class ExampleCommand(Command):
    """Write a small complete example (data, dataset recipe, run configurations) into a folder."""

    def add_arguments(self, command_parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        command_parser.epilog = "example:\n  anemoi-attention example blizzard\n\n" + NEXT_STEPS.format(
            directory="blizzard"
        )
        command_parser.add_argument("directory", type=Path, metavar="DIR", help="folder to write to; made if missing")
        command_parser.add_argument("--overwrite", action="store_true", help="replace files of the same names")

    def run(self, args: argparse.Namespace) -> None:
        """Write the files and say what to do next."""
        try:
            written = write_example(args.directory, args.overwrite)
        except OSError as error:
            # The command line prints a trace for any error; a folder that is in the way needs none.
            raise SystemExit(f"anemoi-attention example: {error}") from error
        for path in written:
            print(path)
        print(NEXT_STEPS.format(directory=args.directory))


command = ExampleCommand
