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


def test_never_writes_through_a_link(tmp_path: Path):
    precious, folder = tmp_path / "precious.txt", tmp_path / "example"
    precious.write_text("mine")
    folder.mkdir()
    (folder / "run.yaml").symlink_to(precious)
    with pytest.raises(FileExistsError, match=r"run\.yaml there is a link or a folder"):
        write_example(folder, overwrite=True)
    assert precious.read_text() == "mine"
    assert not (folder / "recipe.yaml").exists()


def test_files_as_they_are_shipped_are_no_obstacle(tmp_path: Path):
    write_example(tmp_path)
    write_example(tmp_path)


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
    (tmp_path / "here" / "run.yaml").write_text("mine")
    again = cli(tmp_path, "anemoi-attention", "example", "here", check=False)
    assert again.returncode == 1
    assert "--overwrite" in again.stdout
    assert "Traceback" not in again.stdout
