# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Choose tile sizes of the fused attention for this GPU."""

import argparse
from pathlib import Path

from anemoi.utils.cli import Command

EPILOG = """\
A case is B,H,N,D,window: batch, heads, sequence length, head dimension, and keys on each side, or none for all.
Nothing reads the file by itself: a program that calls load_configurations(PATH) uses it.

example:
  anemoi-attention tune 1,16,40320,64,512 1,16,40320,64,none --output tuned.json"""


class TuneCommand(Command):
    """Time a few tile sizes of the fused attention on this GPU, each verified first, and write the choice to a file."""

    def add_arguments(self, command_parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        command_parser.epilog = EPILOG
        command_parser.add_argument("cases", nargs="+", type=case, metavar="B,H,N,D,window", help="shapes to tune for")
        command_parser.add_argument(
            "--dtypes",
            nargs="+",
            choices=["float16", "bfloat16", "float32"],
            default=["bfloat16"],
            help="dtypes to tune for (default: bfloat16)",
        )
        command_parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
        command_parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")

    def run(self, args: argparse.Namespace) -> None:
        """Tune every case and write one file."""
        try:
            chosen = tune_cases(args.cases, args.dtypes, args.output, overwrite=args.overwrite)
        except (FileExistsError, RuntimeError) as error:
            # The command line prints a trace for any error; what the user can mend needs none.
            raise SystemExit(f"anemoi-attention tune: {error}") from error
        for key, config in chosen.items():
            print(*key, config)
        print(f"{len(chosen)} configurations written to {args.output}")


def case(text: str) -> tuple[int, int, int, int, int | None]:
    """Read ``B,H,N,D,window``."""
    try:
        batch, heads, length, head_dim, window = (None if part == "none" else int(part) for part in text.split(","))
        sizes = (batch, heads, length, head_dim)
        if any(size is None or size < 1 for size in sizes) or (window is not None and window < 0):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no case. Allowed: B,H,N,D,window with positive numbers and a window of 0 or more, or none. "
            "Write it like 1,16,40320,64,512."
        ) from None
    return (*sizes, window)  # type: ignore[return-value]


def tune_cases(cases: list[tuple], dtypes: list[str], output: Path, *, overwrite: bool) -> dict:
    """Tune every case in every dtype, and write one file. See ``tuning.tune``."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Needs Triton: only where it is used.
    from ..triton.attention import configuration_file
    from ..triton.attention import tuning

    configuration_file.check_target(output, overwrite=overwrite)
    tuning.require_gpu(device)
    chosen: dict = {}
    for *shape, window in cases:
        for dtype in dtypes:
            batch, heads, length, head_dim = shape
            # The layout of the rows that a linear layer writes.
            query, key, value = torch.randn(3, batch, length, heads, head_dim, device=device).to(getattr(torch, dtype))
            query, key, value = (x.transpose(1, 2) for x in (query, key, value))
            for entry, config in tuning.choose(query, key, value, window).items():
                # Two cases of one key: the first one given decides.
                chosen.setdefault(entry, config)
    configuration_file.write(output, chosen, overwrite=overwrite, **tuning.provenance(device))
    return chosen


command = TuneCommand
