# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The opt-in tuner: what it tries, what it chooses, the file it keeps, and what it refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from anemoi.utils.cli import cli_main
from kernel_checks import check
from kernel_checks import draw

from anemoi.plugins.attention.models.commands import load_commands
from anemoi.plugins.attention.models.errors import BackendUnavailable
from anemoi.plugins.attention.models.triton.attention import candidates
from anemoi.plugins.attention.models.triton.attention import configuration_file
from anemoi.plugins.attention.models.triton.attention import configurations
from anemoi.plugins.attention.models.triton.attention import tuning
from anemoi.plugins.attention.models.triton.attention.configurations import Configuration
from anemoi.plugins.attention.models.triton.attention.configurations import Key

FORWARD = Key("sm_90", "forward", torch.bfloat16, 64, True)
BACKWARD = Key("sm_90", "backward_query", torch.bfloat16, 64, True)


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "_loaded", {})


def look_up(key: Key, head_dim: int | None = None) -> Configuration:
    arguments = (key.architecture, key.direction, key.dtype, head_dim or key.head_dim)
    explicit = configurations.explicit_configuration(*arguments, windowed=key.windowed)
    return explicit or configurations.configuration(*arguments, windowed=key.windowed)


def test_at_most_eight_candidates_and_the_shipped_one_first() -> None:
    for key in map(Key._make, configurations.shipped()):
        found = candidates.candidates(key)
        assert 2 <= len(found) == len(set(found)) <= 8
        assert found[0] == look_up(key)


def test_file_gives_back_what_was_written_and_is_used(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    chosen = {key: candidates.candidates(key)[2] for key in (FORWARD, BACKWARD)}
    configuration_file.write(path, chosen, gpu="a GPU", torch="2", triton="3")
    assert configuration_file.read(path) == chosen
    shipped = look_up(FORWARD)
    configurations.load(path)
    assert look_up(FORWARD) == chosen[FORWARD] != shipped
    # fp16, the global case and the other directions keep the table.
    assert look_up(FORWARD._replace(dtype=torch.float16)) == shipped
    assert look_up(FORWARD._replace(windowed=False)).block_m == 128
    configurations.unload()
    assert look_up(FORWARD) == shipped


def test_every_candidate_can_be_stored(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    for key in (FORWARD, Key("gfx942", "backward_key_value", torch.float32, 256, False)):
        for config in candidates.candidates(key):
            configuration_file.write(path, {key: config}, overwrite=True)
            assert configuration_file.read(path) == {key: config}


def test_padded_head_takes_the_table_where_an_explicit_kernel_is_loaded() -> None:
    explicit = next(config for config in candidates.candidates(FORWARD) if config.explicit)
    with configurations.using({FORWARD: explicit}):
        assert look_up(FORWARD) == explicit
        assert not look_up(FORWARD, head_dim=40).explicit
    assert not look_up(FORWARD).explicit


def test_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="--overwrite"):
        tuning.tune(*draw(1, 1, 8, 16, device=torch.device("cpu"))[:3], None, path)
    assert path.read_text() == "mine"


def remove_field(content: dict) -> None:
    del content["configurations"][0]["num_warps"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.update(extra=1), "unknown keys extra"),
        (lambda content: content.update(format=2), "format=2. Allowed: 1"),
        (lambda content: content.update(configurations={}), "Allowed: a list"),
        (lambda content: content["configurations"].append(3), "configuration 2 is 3"),
        (lambda content: content["configurations"].append(content["configurations"][0]), "is the second for sm_90 for"),
        (lambda content: content["configurations"][0].update(num_wraps=4), "unknown keys num_wraps"),
        (remove_field, "lacks num_warps"),
        (lambda content: content["configurations"][0].update(architecture="sm_91"), "architecture='sm_91'"),
        (
            lambda content: content["configurations"][0].update(head_dim=40),
            "head_dim=40. Allowed: 16, 32, 64, 128, 256",
        ),
        (lambda content: content["configurations"][0].update(windowed=1), "windowed=1. Allowed: False, True"),
        (lambda content: content["configurations"][0].update(dtype=["bfloat16"]), "dtype="),
        (
            lambda content: content["configurations"][0].update(block_m=96),
            "block_m=96.* for sm_90 forward bfloat16 D=64",
        ),
        (lambda content: content["configurations"][0].update(num_stages="3"), "num_stages='3'"),
        (lambda content: content["configurations"][0].update(num_stages=[3]), "num_stages="),
    ],
)
def test_damaged_file_is_refused(damage: Callable[[dict], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    configuration_file.write(path, {FORWARD: candidates.candidates(FORWARD)[0]})
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(configuration_file.InvalidConfigurationFile, match=message) as caught:
        configurations.load(path)
    # What failed, the value, what is allowed, what to do.
    assert re.fullmatch(r".*cannot be used: .*\. Allowed: .*\. Write the file anew .*", str(caught.value))
    assert not configurations._loaded


@pytest.mark.parametrize("text", [None, "{", "[]", "\x00"])
def test_what_is_no_such_file_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(configuration_file.InvalidConfigurationFile, match="cannot be used"):
        configurations.load(path)


def test_choice_is_right_and_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = draw(1, 1, 40, 16, device=torch.device("cpu"))[:3]
    few = [Configuration(block, 16, 4, 1) for block in (16, 32, 64)]
    monkeypatch.setattr(tuning, "candidates", lambda _: few)
    # The second is wrong, the third the fastest of the others.
    real = tuning.Trial.error
    monkeypatch.setattr(tuning.Trial, "error", lambda self, *x: float("nan") if x[1] is few[1] else real(self, *x))
    milliseconds = iter([3.0, 1.0] + [3.0, 2.99] * 2)
    chosen = tuning.choose(*tensors, 5, measure=lambda _: next(milliseconds))
    # Less than 2 % is no reason to leave what was shipped.
    assert list(chosen.values()) == [few[2], few[0], few[0]]
    assert {key[:4] for key in chosen} == {("sm_90", d, torch.float32, 16) for d in configurations.DIRECTIONS}


def test_candidate_that_cannot_run_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = draw(1, 1, 24, 16, device=torch.device("cpu"), dtype=torch.float16)[:3]
    # On a CPU, the kernels with explicit asynchrony.
    monkeypatch.setattr(configurations, "DIRECTIONS", ("forward",))
    monkeypatch.setattr(
        tuning, "candidates", lambda _: [configurations.explicit_of((64, 64, 4, 2)), Configuration(16, 16, 4, 1)]
    )
    assert list(tuning.choose(*tensors, None, measure=lambda _: 1.0).values()) == [Configuration(16, 16, 4, 1)]


def run(*arguments: str) -> None:
    cli_main("0", "", load_commands(), ["tune", *arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_command_without_gpu_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Allowed: a CUDA or ROCm device"):
        run("1,1,64,16,4", "--output", str(tmp_path / "tuned.json"))
    with pytest.raises(BackendUnavailable, match="device=cpu"):
        tuning.tune(*[torch.zeros(1, 1, 8, 16)] * 3, None, tmp_path / "tuned.json")
    assert not list(tmp_path.iterdir())


def test_command_keeps_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "tuned.json").write_text("mine")
    with pytest.raises(SystemExit, match="--overwrite"):
        run("1,1,64,16,4", "--output", str(tmp_path / "tuned.json"))


@pytest.mark.parametrize("text", ["1,1,64,16", "1,1,64,0,4", "1,1,64,16,-4", "none,1,64,16,4", "a"])
def test_command_refuses_what_is_no_case(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(text, "--output", str(tmp_path / "tuned.json"))
    assert "Write it like 1,16,40320,64,512" in capsys.readouterr().err


def test_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    assert "anemoi-attention tune 1,16,40320,64,512" in capsys.readouterr().out


@pytest.mark.gpu
def test_tuned_on_the_device(tmp_path: Path) -> None:
    run("1,2,1500,64,200", "--output", str(tmp_path / "tuned.json"))
    configurations.load(tmp_path / "tuned.json")
    assert len(configurations._loaded) == 3
    check(draw(1, 2, 1025, 64, device=torch.device("cuda"), dtype=torch.bfloat16), window_size=(200, 200))
