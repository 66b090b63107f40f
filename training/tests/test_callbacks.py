# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The link to the newest checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytorch_lightning.callbacks import ModelCheckpoint

from anemoi.plugins.attention.training.callbacks import LinkLatestCheckpoint


def finish(root: Path, run: str, *, is_global_zero: bool = True, write: bool = True) -> Path:
    folder = root / "checkpoint" / run
    folder.mkdir(parents=True)
    if write:
        (folder / "inference-last.ckpt").write_text(run)
    trainer: Any = SimpleNamespace(
        is_global_zero=is_global_zero, checkpoint_callbacks=[ModelCheckpoint(dirpath=folder)]
    )
    link = root / "inference-last.ckpt"
    LinkLatestCheckpoint(link).teardown(trainer, None, "fit")  # type: ignore[arg-type]
    return link


def test_points_at_the_newest_run_and_moves_with_the_folder(tmp_path: Path):
    finish(tmp_path / "output", "first")
    assert finish(tmp_path / "output", "second").read_text() == "second"
    moved = (tmp_path / "output").rename(tmp_path / "elsewhere")
    assert (moved / "inference-last.ckpt").read_text() == "second"


def test_leaves_a_file_of_the_users_alone(tmp_path: Path):
    (tmp_path / "inference-last.ckpt").write_text("mine")
    assert finish(tmp_path, "first").read_text() == "mine"


def test_other_ranks_and_failed_runs_write_nothing(tmp_path: Path):
    assert not finish(tmp_path, "first", is_global_zero=False).exists()
    assert not finish(tmp_path, "second", write=False).is_symlink()
