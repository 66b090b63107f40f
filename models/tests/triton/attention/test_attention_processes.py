# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What only shows in fresh processes: the same choice and bits everywhere, an empty cache, a first call."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "attention_process.py"


def start(task: str, device: str, cache: Path, interpret: bool = False) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(cache)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(SCRIPT), task, device]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_a29_two_processes_agree(device: torch.device, tmp_path: Path) -> None:
    cpu = device.type == "cpu"
    processes = [start("digest", device.type, tmp_path / str(rank), interpret=cpu) for rank in range(2)]
    first, second = map(finish, processes)
    assert first == second
    assert len(first) == 5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.distributed])])
def test_a32_eight_processes_and_one_empty_cache(device: str, tmp_path: Path) -> None:
    assert finish(start("race", device, tmp_path / "cache"))["codes"] == [0] * 8
    assert any((tmp_path / "cache").iterdir())


@pytest.mark.gpu
def test_first_forward_and_backward_take_seconds(tmp_path: Path) -> None:
    assert finish(start("first_call", "cuda", tmp_path / "cache"))["seconds"] < 15.0


@pytest.mark.gpu
def test_a40_cold_capture_works_or_says_what_to_do(tmp_path: Path) -> None:
    result = finish(start("capture", "cuda", tmp_path / "cache"))
    if "error" in result:
        assert "Run forward and backward once" in result["error"]
    else:
        assert result == {"equal": True}
