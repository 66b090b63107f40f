# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``anemoi-attention example``."""

from pathlib import Path

import pytest

from anemoi.plugins.attention.training.commands.example import write_example

FILES = ["blizzard-1996.nc", "recipe.yaml", "run-sdpa.yaml", "run.yaml"]


def test_writes_data_recipe_and_run_configurations(tmp_path: Path):
    written = write_example(tmp_path / "new" / "folder")
    assert [path.name for path in written] == FILES
    assert all(path.stat().st_size > 0 for path in written)


def test_does_not_overwrite_unless_asked(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("mine")
    with pytest.raises(FileExistsError, match=r"run\.yaml already there.*--overwrite"):
        write_example(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    assert (tmp_path / "run.yaml").read_text() == "mine"
    write_example(tmp_path, overwrite=True)
    assert (tmp_path / "run.yaml").read_text() != "mine"


def test_a_file_in_the_way_is_named(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(NotADirectoryError, match="taken is a file"):
        write_example(tmp_path / "taken" / "example")


def test_command_line(tmp_path: Path, cli):
    assert "anemoi-attention example blizzard" in cli(tmp_path, "anemoi-attention", "example", "--help").stdout
    assert "anemoi-datasets create" in cli(tmp_path, "anemoi-attention", "example", "here").stdout
    again = cli(tmp_path, "anemoi-attention", "example", "here", check=False)
    assert again.returncode == 1
    assert "--overwrite" in again.stdout
    assert "Traceback" not in again.stdout
