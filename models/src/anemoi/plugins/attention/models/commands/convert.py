# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Give an inference checkpoint another attention backend."""

import argparse
from pathlib import Path

from anemoi.utils.cli import Command

from ._failure import exit_with_message

EPILOG = """\
Weights, metadata and supporting arrays stay as they are, bit for bit; IN is never changed. Neither the backend of IN
nor the new one has to run on this machine. With a backend of anemoi-models, OUT opens without this package.

example:
  anemoi-attention convert inference-last.ckpt portable.ckpt --transformer scaled_dot_product_attention"""


class ConvertCommand(Command):
    """Write a copy of an inference checkpoint whose attention layers have another backend."""

    def add_arguments(self, command_parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        command_parser.epilog = EPILOG
        command_parser.add_argument("source", type=Path, metavar="IN", help="the inference checkpoint")
        command_parser.add_argument("target", type=Path, metavar="OUT", help="the file to write")
        command_parser.add_argument("--transformer", metavar="NAME", help="backend of the transformer layers")
        command_parser.add_argument(
            "--graph-transformer", metavar="NAME", help="backend of the graph-transformer layers"
        )
        command_parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")

    def check(self, parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
        """Ask for a backend."""
        if args.transformer is None and args.graph_transformer is None:
            parser.error("convert needs --transformer NAME, --graph-transformer NAME, or both")

    def run(self, args: argparse.Namespace) -> None:
        """Convert, and say what was written."""
        with exit_with_message("convert"):
            from ..checkpoint.convert import convert_checkpoint

            layers = convert_checkpoint(
                args.source,
                args.target,
                transformer=args.transformer,
                graph_transformer=args.graph_transformer,
                overwrite=args.overwrite,
            )
        counts: dict[tuple[str, str], int] = {}
        for layer in layers:
            key = (layer.spec.kind, layer.backend)
            counts[key] = counts.get(key, 0) + 1
        for (kind, backend), count in counts.items():
            print(f"{kind:18} {backend:30} {count} layer{'' if count == 1 else 's'}")
        if any(module.startswith("anemoi.plugins.attention") for layer in layers for module, _ in layer.symbols):
            print("Rotary embeddings: the package anemoi-plugins-attention-models is needed to open this checkpoint.")
        print(f"written to {args.target}")


command = ConvertCommand
