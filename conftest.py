# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fixtures that the tests of several packages share: a real dataset, and a checkpoint from a real, short training."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Return a function that runs a command of this environment: ``cli(directory, "anemoi-training", "train", ...)``.

    The result has `returncode` and, as `stdout`, everything that was printed. With ``check=True``, the default, a
    command that fails fails the test.
    """

    def run(directory: Path, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).parent / command[0]
        # Variables that choose a backend must come from the test alone; one thread is enough for these sizes.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANEMOI_")}
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=directory,
            env={"OMP_NUM_THREADS": "1"} | inherited | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}"
        return done

    return run


@pytest.fixture(scope="session")
def blizzard_example(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """Return a folder made by ``anemoi-attention example``, with the dataset in it. Treat as read-only."""
    pytest.importorskip("anemoi.datasets", reason="the blizzard dataset needs anemoi-datasets")
    directory = tmp_path_factory.mktemp("blizzard")
    cli(directory, "anemoi-attention", "example", ".")
    cli(directory, "anemoi-datasets", "create", "recipe.yaml", "blizzard-1996.zarr")
    return directory


@pytest.fixture(scope="session")
def blizzard_dataset(blizzard_example: Path) -> Path:
    """Return the path of the blizzard dataset."""
    return blizzard_example / "blizzard-1996.zarr"


@pytest.fixture(scope="session")
def blizzard_training(blizzard_dataset: Path, tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> tuple[Path, str]:
    """Return the folder and the log of a training of two steps with ``--config-name=attention_blizzard``."""
    pytest.importorskip("anemoi.training", reason="the blizzard checkpoint needs anemoi-training")
    directory = tmp_path_factory.mktemp("training")
    done = cli(
        directory,
        "anemoi-training",
        "train",
        "--config-name=attention_blizzard",
        f"system.input.dataset={blizzard_dataset}",
        "training.max_steps=2",
        "dataloader.limit_batches.validation=1",
    )
    return directory, done.stdout


@pytest.fixture(scope="session")
def blizzard_checkpoint(blizzard_training: tuple[Path, str]) -> Path:
    """Return an inference checkpoint trained for two steps, with `triton_attention`."""
    return (blizzard_training[0] / "output" / "inference-last.ckpt").resolve()
