# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which backend a run gets, and from where."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from anemoi.inference.runner import Runner
from anemoi.inference.runners import runner_registry
from anemoi.inference.runners.default import DefaultRunner

from anemoi.plugins.attention.inference.runner import AttentionRunner
from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models.environment import VARIABLES
from anemoi.plugins.attention.models.integration import attention_layers

TRITON, SDPA = "triton_attention", "scaled_dot_product_attention"
VARIABLE = VARIABLES["transformer"]
GRAPH_VARIABLE = VARIABLES["graph_transformer"]
MakeRunner = Callable[..., Runner]
Forecast = Callable[..., dict[str, np.ndarray]]


def transformer_backends_of(runner: Runner) -> set[str]:
    """Return the backends that the transformer layers of a runner's model call."""
    found = {layer.attention.backend for _, kind, layer in attention_layers(runner.model) if kind == "transformer"}
    assert found
    return found


def assert_same_forecast(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    for name, values in first.items():
        assert np.isfinite(values).all()
        assert np.abs(values - second[name]).max() <= 1e-5 * np.abs(values).max(), name


def lines(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(start)]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_d2_d12_command_line(
    tmp_path: Path,
    run_configuration: Callable[..., dict[str, Any]],
    read_forecast: Callable[[Path], dict[str, np.ndarray]],
    cli: Any,
) -> None:
    """As trained, then by the environment with the runner `auto`, the graph backend being equal to the model's (D2).

    No precision is given: training writes `32-true` into the checkpoint (D12).
    """
    logs = []
    for environment in ({}, {VARIABLE: SDPA, GRAPH_VARIABLE: TRITON}):
        path = tmp_path / f"{len(environment)}.nc"
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_configuration(output={"netcdf": str(path)})))
        logs.append(cli(tmp_path, "anemoi-inference", "run", "run.yaml", **environment).stdout)
    assert f"graph_transformer={TRITON} (torch path, no GPU) in 2 layers, from the checkpoint;" in logs[0]
    assert f"transformer={TRITON} (banded torch path, no GPU) in 2 layers, from the checkpoint." in logs[0]
    assert f"graph_transformer={TRITON} (torch path, no GPU) in 2 layers, from {GRAPH_VARIABLE};" in logs[1]
    assert f"transformer={SDPA} (part of torch) in 2 layers, from {VARIABLE}, the checkpoint says {TRITON}." in logs[1]
    assert all(log.count("Attention backends: ") == 1 for log in logs)
    assert_same_forecast(read_forecast(tmp_path / "0.nc"), read_forecast(tmp_path / "2.nc"))


def test_d7_run_configuration_environment_and_env_key(
    forecast: Forecast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three ways to say it, in one process: each counts for its own run alone (D7)."""
    expected = forecast()
    by_configuration = forecast(runner={"attention": {"transformer": SDPA}})
    by_key = forecast(env={VARIABLE: SDPA})
    monkeypatch.setenv(VARIABLE, TRITON)
    by_variable = forecast()
    backends = [line.partition("; ")[2] for line in lines(caplog, "Attention backends: ")]
    sdpa = f"transformer={SDPA} (part of torch) in 2 layers, from "
    triton = f"transformer={TRITON} (banded torch path, no GPU) in 2 layers, from "
    assert backends == [
        f"{triton}the checkpoint.",
        f"{sdpa}runner.attention.transformer, the checkpoint says {TRITON}.",
        f"{sdpa}{VARIABLE}, the checkpoint says {TRITON}.",
        f"{triton}{VARIABLE}.",
    ]
    for other in (by_configuration, by_key, by_variable):
        assert_same_forecast(expected, other)


def test_run_configuration_wins_over_the_environment(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    runner = make_runner(runner={"attention": {"transformer": "sdpa"}})
    assert transformer_backends_of(runner) == {SDPA}
    assert lines(caplog, "runner.attention") == [f"runner.attention.transformer={SDPA} wins over {VARIABLE}={TRITON}."]


def test_agreement_is_not_logged(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    make_runner(runner={"attention": {"transformer": TRITON}})
    assert not [record for record in caplog.records if "wins over" in record.getMessage()]


@pytest.mark.parametrize("options", [{"transformer": None}, {}, None], ids=str)
def test_null_and_no_options_leave_the_environment_its_say(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setenv(VARIABLE, SDPA)
    runner = make_runner(runner="attention" if options is None else {"attention": options})
    assert transformer_backends_of(runner) == {SDPA}


def test_empty_variable_is_not_set(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert transformer_backends_of(make_runner()) == {TRITON}


@pytest.mark.parametrize("name", ["triton", "sdpa"])
def test_c49_aliases_are_accepted(make_runner: MakeRunner, name: str) -> None:
    runner = make_runner(runner={"attention": {"transformer": name}})
    assert transformer_backends_of(runner) == {{"triton": TRITON, "sdpa": SDPA}[name]}


@pytest.mark.parametrize(
    ("where", "name", "closest"),
    [
        ("runner.attention.transformer", "trtion", "triton"),
        ("runner.attention.transformer", "TRITON_ATTENTION", TRITON),
        ("runner.attention.transformer", "", None),
        ("runner.attention.transformer", "pyg", None),
        (VARIABLE, "trtion", "triton"),
        (VARIABLE, "TRITON_ATTENTION", TRITON),
        (VARIABLE, "pyg", None),
    ],
)
def test_c49_wrong_names_fail_before_anything_is_read_or_written(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, name: str, closest: str | None
) -> None:
    changes: dict[str, Any] = {}
    if where == VARIABLE:
        monkeypatch.setenv(VARIABLE, name)
    else:
        changes["runner"] = {"attention": {"transformer": name}}
    with pytest.raises(UnknownBackend) as raised:
        # The dataset does not exist: reading it would fail in another way.
        make_runner(input={"dataset": "missing.zarr"}, output={"netcdf": str(tmp_path / "new" / "f.nc")}, **changes)
    message = str(raised.value)
    assert message.startswith(f"{where} names no attention backend: {name!r}. Allowed: {TRITON}, ")
    assert (f"Did you mean '{closest}'?" if closest else f"Set {where}") in message
    assert not (tmp_path / "new").exists()


def test_wrong_variable_fails_even_if_overruled(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "trtion")
    with pytest.raises(UnknownBackend, match=VARIABLE):
        make_runner(runner={"attention": {"transformer": SDPA}})


def test_d6_unavailable_backends_fail_before_anything_is_read_or_written(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """D6: also with a date that the dataset does not have, which reading would find."""
    output = {"netcdf": str(tmp_path / "forecast.nc")}
    changes = {"output": output, "date": "2001-01-01"}
    monkeypatch.setenv(VARIABLE, "flash_attention")
    # On a CPU it can't run whether it is installed or not.
    runner = make_runner(**changes)
    with pytest.raises(BackendUnavailable, match=rf"^{VARIABLE}=flash_attention: .*Usable here: {TRITON}, {SDPA}"):
        runner.execute()
    runner = make_runner(output="none", runner={"attention": {"graph_transformer": "triton", "transformer": SDPA}})
    with pytest.raises(BackendUnavailable, match=r"^runner.attention.graph_transformer=triton: .*Usable here: pyg"):
        runner.execute()
    assert not list(tmp_path.iterdir())


def test_a_machine_that_only_retrieves_needs_no_backend(
    tmp_path: Path, run_configuration: Callable[..., dict[str, Any]], cli: Any
) -> None:
    """Data are often retrieved on a machine without the GPU that the run configuration is for."""
    configuration = run_configuration(device="cuda", runner={"attention": {"transformer": "flash_attention"}})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(configuration))
    cli(tmp_path, "anemoi-inference", "retrieve", "run.yaml", "--date", "1996-01-17", "--output", "requests.json")
    assert (tmp_path / "requests.json").exists()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("ANEMOI_INFERENCE_TRANSFORMER_ATTENTION_BACKENDS", VARIABLE),
        ("ANEMOI_INFERENCE_GRAPH_TRANSFORMER_ATTENTION_BACKEND", GRAPH_VARIABLE),
        ("anemoi_inference_transformer_attention_backend", VARIABLE),
    ],
)
def test_d6_misspelt_variables_are_warned_of(
    make_runner: MakeRunner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    right: str,
) -> None:
    monkeypatch.setenv(name, SDPA)
    # Neither the right name nor another variable of the host is a misspelling.
    monkeypatch.setenv(VARIABLE, TRITON)
    monkeypatch.setenv("ANEMOI_INFERENCE_NUM_CHUNKS", "1")
    make_runner()
    (warning,) = lines(caplog, "Environment variable ")
    assert warning.startswith(f"Environment variable {name} is not known and has no effect.")
    assert warning.endswith(f"Did you mean {right}?")


def test_c50_swap_on_a_loaded_model_keeps_the_state_dict(make_runner: MakeRunner) -> None:
    trained = make_runner(runner={"attention": {"transformer": TRITON}}).model
    before = copy.deepcopy(trained.state_dict())
    after = make_runner(runner={"attention": {"transformer": SDPA, "graph_transformer": "pyg"}}).model.state_dict()
    stored = torch.load(make_runner().checkpoint.path, map_location="cpu", weights_only=False).state_dict()
    assert list(before) == list(after) == list(stored)
    assert all(torch.equal(before[key], after[key]) and torch.equal(after[key], stored[key]) for key in stored)


def test_default_runners_keep_their_class(make_runner: MakeRunner) -> None:
    runner = make_runner()
    assert isinstance(runner, DefaultRunner)
    assert type(runner).__name__ == "DefaultRunner"
    assert not isinstance(runner, AttentionRunner)
    assert type(runner) is type(make_runner())


def test_runner_is_a_runner_class() -> None:
    assert runner_registry.lookup("attention") is AttentionRunner
    assert issubclass(AttentionRunner, Runner)
