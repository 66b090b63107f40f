# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The commands on checkpoints: what they print, and what they say of wrong input."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import build

TRITON, SDPA = "triton_attention", "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a subcommand in this process, and returns what it printed and its exit message."""
    from anemoi.utils.cli import make_parser

    from anemoi.plugins.attention.models.commands import load_commands

    def call(*arguments: str | Path) -> str:
        commands = load_commands()
        parser = make_parser("", commands)
        try:
            args = parser.parse_args([str(argument) for argument in arguments])
            commands[args.command].check(parser, args)
            commands[args.command].run(args)
        except SystemExit as exit_:
            captured = capsys.readouterr()
            return f"{captured.out}{captured.err}{exit_.code}"
        return capsys.readouterr().out

    return call


def test_help_is_quick_and_imports_no_torch() -> None:
    program = Path(sys.executable).parent / "anemoi-attention"
    start = time.monotonic()
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert time.monotonic() - start < 1.5
    assert all(name in done.stdout for name in ("convert", "explain", "inspect", "tune"))
    check = (
        "import sys; from anemoi.plugins.attention.models.commands import load_commands; load_commands(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@pytest.mark.parametrize("command", ["convert", "inspect"])
def test_help_has_an_example(run: Any, command: str) -> None:
    assert f"example:\n  anemoi-attention {command} inference-last.ckpt" in run(command, "--help")


def test_inspect_prints_a_table(run: Any, files: dict[str, Path]) -> None:
    lines = run("inspect", files["softcap"]).splitlines()
    assert lines[0].split() == ["layer", "kind", "heads", "head", "dim", "window", "options", "backend", "runs", "here"]
    assert lines[1].split("  ")[0] == "self"
    assert "softcap=0.5, alibi, dropout=0.1" in lines[1]
    assert lines[1].endswith("flash_attention  no")
    assert lines[3].split() == ["graph", "graph_transformer", "4", "4", "-", "-", "pyg", "yes"]
    explanation = next(line for line in lines if line.startswith("flash_attention cannot run transformer layers here"))
    assert "flash-attention is not installed" in explanation
    usable = explanation.partition("Usable here: ")[2]
    assert TRITON in usable
    # It has neither softcap nor ALiBi.
    assert SDPA not in usable
    assert lines[-1] == "Named by the checkpoint and not installed here: flash_attn.interface.flash_attn_func."


@pytest.mark.parametrize("name", ["stock", "flash2", "flash3", "flash4", "rotary", "graph", "older_host", "foreign"])
def test_inspect_json(run: Any, files: dict[str, Path], name: str) -> None:
    found = json.loads(run("inspect", files[name], "--json", "--device", "cpu"))
    assert found["layers_from"] == "model"
    assert [layer["layer"] for layer in found["layers"]] == ["self", "cross", "graph"]
    first = found["layers"][0]
    assert (first["heads"], first["head_dim"], first["window"]) == (4, 8, 4)
    assert first["options"] == ({"rotary": True} if name == "rotary" else {})
    assert first["runs_here"] == ("flash" not in first["backend"])
    assert found["layers"][2]["runs_here"] == (name != "graph")
    assert {TRITON, SDPA} <= set(first["usable_here"])
    assert bool(found["not_installed"]) == (name in ("flash2", "flash3", "flash4", "rotary", "foreign"))


def test_inspect_of_a_training_checkpoint_reads_its_configuration(
    run: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    from anemoi.utils.checkpoints import load_metadata
    from anemoi.utils.checkpoints import save_metadata

    path = tmp_path / "last.ckpt"
    torch.save({"pytorch-lightning_version": "2.5", "state_dict": {}}, path)
    save_metadata(str(path), load_metadata(str(files["flash2"])))
    printed = run("inspect", path)
    assert "training checkpoint of Lightning" in printed
    assert "This is what the configuration in its metadata says:" in printed
    assert "config.model.processor (x 2)  transformer  4      8         4       -        flash_attention  no" in printed
    found = json.loads(run("inspect", path, "--json"))
    assert found["layers_from"] == "metadata"
    assert found["layers"][0]["count"] == 2


def test_convert_says_what_it_wrote(run: Any, files: dict[str, Path], tmp_path: Path) -> None:
    printed = run("convert", files["flash2"], tmp_path / "out.ckpt", "--transformer", "sdpa")
    assert f"transformer        {SDPA}   2 layers" in printed
    assert "written to" in printed
    printed = run("convert", files["rotary"], tmp_path / "rotary.ckpt", "--transformer", "triton")
    assert "the package anemoi-plugins-attention-models is needed to open this checkpoint" in printed
    assert "the file exists" in run("convert", files["flash2"], tmp_path / "out.ckpt", "--transformer", "sdpa")
    assert "needs --transformer NAME" in run("convert", files["flash2"], tmp_path / "new.ckpt")
    assert "Did you mean 'triton'" in run("convert", files["flash2"], tmp_path / "new.ckpt", "--transformer", "trtion")
    assert not (tmp_path / "new.ckpt").exists()


def _wrong(directory: Path, good: Path) -> dict[str, tuple[Path, str]]:
    """Make files that are no checkpoints, each with what is said of it."""
    import zipfile

    paths = {name: directory / f"{name}.ckpt" for name in ("empty", "truncated", "text", "zip", "damaged", "state")}
    paths["empty"].write_bytes(b"")
    paths["truncated"].write_bytes(good.read_bytes()[:5000])
    paths["text"].write_text("weights")
    with zipfile.ZipFile(paths["zip"], "w") as archive:
        archive.writestr("a.txt", "a")
    with zipfile.ZipFile(paths["damaged"], "w") as archive:
        archive.writestr("damaged/data.pkl", b"\x80\x02}q")
    torch.save({"weight": torch.ones(2)}, paths["state"])
    (directory / "link.ckpt").symlink_to(directory / "gone.ckpt")
    return {
        "missing": (directory / "missing.ckpt", "no such file"),
        "link": (directory / "link.ckpt", "gone.ckpt, which does not exist"),
        "directory": (directory, "it is a directory"),
        "empty": (paths["empty"], "it is empty"),
        "truncated": (paths["truncated"], "it is truncated"),
        "text": (paths["text"], "it is no zip archive (it starts with b'weig')"),
        "zip": (paths["zip"], "torch.save has not written it"),
        "damaged": (paths["damaged"], "it is damaged"),
        "state": (paths["state"], "it holds no model but a dictionary of 1 entries (a state_dict)"),
    }


@pytest.mark.parametrize(
    "name", ["missing", "link", "directory", "empty", "truncated", "text", "zip", "damaged", "state"]
)
def test_wrong_files(run: Any, files: dict[str, Path], tmp_path: Path, name: str) -> None:
    path, problem = _wrong(tmp_path, files["stock"])[name]
    outputs = {
        "inspect": run("inspect", path),
        "convert": run("convert", path, tmp_path / "out.ckpt", "--transformer", "sdpa"),
    }
    for command, printed in outputs.items():
        assert printed.startswith(f"anemoi-attention {command}: Checkpoint '{path}' cannot be used: ")
        assert problem in printed
        assert "Allowed: an inference checkpoint" in printed
    assert not (tmp_path / "out.ckpt").exists()


@pytest.fixture
def _not_root() -> Any:
    """Be a user to whom permissions apply."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.usefixtures("_not_root")
def test_no_permission() -> None:
    import tempfile

    from anemoi.plugins.attention.models import InvalidCheckpoint
    from anemoi.plugins.attention.models.checkpoint import read_layers

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.ckpt"
        path.write_bytes(b"PK")
        path.chmod(0)
        with pytest.raises(InvalidCheckpoint, match=r"no permission to read it.*chmod u\+r"):
            read_layers(path)


def test_the_program_prints_no_traceback(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "anemoi-attention"
    done = subprocess.run([program, "inspect", tmp_path / "no.ckpt"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no such file" in done.stderr
