# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The runner `attention` on top of other runners, and `parallel` on top of it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from anemoi.inference.config.run import RunConfiguration
from anemoi.inference.runner import Runner
from anemoi.inference.runners import create_runner
from anemoi.inference.runners import runner_registry
from anemoi.inference.runners.default import DefaultRunner
from anemoi.inference.runners.parallel import ParallelRunnerMixin

from anemoi.plugins.attention.inference.options import InvalidRunnerOptions
from anemoi.plugins.attention.inference.runner import AttentionRunner
from anemoi.plugins.attention.models.environment import VARIABLES
from anemoi.plugins.attention.models.integration import attention_layers

TRITON, SDPA = "triton_attention", "scaled_dot_product_attention"
VARIABLE = VARIABLES["transformer"]
MakeRunner = Callable[..., Runner]


class RebuildingRunner(DefaultRunner):
    """Like the host's `external_graph`: an option of its own, and a model whose layers are set up anew."""

    def __init__(self, config: Any, graph: str) -> None:
        super().__init__(config)
        self.graph = graph

    @cached_property
    def model(self) -> torch.nn.Module:
        model = super().model
        for _, kind, layer in attention_layers(model):
            if kind == "transformer":
                layer.attention_implementation = TRITON
                layer.set_attention_function()
        return model


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    runner_registry.register("rebuilding", RebuildingRunner)


def transformer_backends_of(runner: Runner) -> set[str]:
    found = {layer.attention.backend for _, kind, layer in attention_layers(runner.model) if kind == "transformer"}
    assert found
    return found


@pytest.mark.parametrize("base", ["auto", "forecaster", None])
def test_named_base(make_runner: MakeRunner, base: str | None) -> None:
    runner = make_runner(runner={"attention": {"transformer": SDPA, "base_runner": base}})
    assert isinstance(runner, AttentionRunner)
    assert isinstance(runner, DefaultRunner)
    assert transformer_backends_of(runner) == {SDPA}


def refusals() -> dict[str, tuple[type[Exception], str]]:
    """What the released runners say that cannot be built on, or not for this checkpoint."""
    return {
        "parallel": (InvalidRunnerOptions, "{parallel: {base_runner: attention}}"),
        "simple": (InvalidRunnerOptions, "takes no run configuration"),
        # The host's own checks.
        "temporal-downscaler": (AssertionError, "requires exactly two input explicit times"),
        "external-graph": (AssertionError, "only supports legacy single-dataset checkpoints"),
    }


def test_every_released_runner_can_be_the_base(make_runner: MakeRunner) -> None:
    released = [name for name in runner_registry.registered if name not in ("attention", "rebuilding")]
    assert {"auto", "forecaster", "temporal-downscaler", *refusals()} <= set(released)
    for name in released:
        base: Any = {name: {"graph": "g.pt"}} if name == "external-graph" else name
        options = {"transformer": SDPA, "base_runner": base}
        if name in refusals():
            error, text = refusals()[name]
            with pytest.raises(error, match=re.escape(text)):
                make_runner(runner={"attention": options})
            continue
        runner = make_runner(runner={"attention": options})
        assert isinstance(runner, AttentionRunner), name
        assert [choice.backend for choice in runner.attention_choices] == [SDPA], name


@pytest.mark.parametrize("options", [{"graph": "g.pt"}, ["g.pt"], "g.pt"], ids=str)
def test_base_with_options_that_rebuilds_its_model(make_runner: MakeRunner, options: Any) -> None:
    runner = make_runner(runner={"attention": {"transformer": SDPA, "base_runner": {"rebuilding": options}}})
    assert isinstance(runner, RebuildingRunner)
    assert runner.graph == "g.pt"
    assert transformer_backends_of(runner) == {SDPA}
    assert runner.model.runner is runner


def test_typed_base(make_runner: MakeRunner) -> None:
    runner = make_runner(runner={"attention": {"base_runner": {"_type": "rebuilding", "graph": "g.pt"}}})
    assert isinstance(runner, RebuildingRunner)
    assert runner.graph == "g.pt"


def test_environment_reaches_a_runner_that_rebuilds_its_model(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, SDPA)
    assert transformer_backends_of(make_runner(runner={"rebuilding": {"graph": "g.pt"}})) == {SDPA}


def test_base_without_attention_layers(make_runner: MakeRunner, caplog: pytest.LogCaptureFixture) -> None:
    make_runner(runner={"attention": {"transformer": SDPA, "base_runner": "no-model"}}).model  # noqa: B018
    assert f"runner.attention.transformer={SDPA} has no effect" in caplog.text


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"transfomer": SDPA}, ["'transfomer'", "Allowed: transformer, graph_transformer, base_runner."]),
        ({"transformer": 3}, ["runner.attention.transformer", "got 3 (int)", "Allowed: a string"]),
        ({"graph_transformer": {"pyg": {}}}, ["runner.attention.graph_transformer", "(dict)"]),
        (SDPA, [f"got '{SDPA}'", "Allowed: transformer", f"{{transformer: {SDPA}}}"]),
        ({"base_runner": "attention"}, ["can't be its own base", "Allowed: auto, "]),
        ({"base_runner": {"attention": {"transformer": SDPA}}}, ["can't be its own base"]),
        ({"base_runner": "parallel"}, ["'runner: {parallel: {base_runner: attention}}'"]),
        ({"base_runner": "forcaster"}, ["no runner 'forcaster'", "forecaster"]),
        ({"base_runner": 3}, ["base_runner=3", "neither a name nor"]),
        ({"base_runner": {"forecaster": {}, "simple": {}}}, ["neither a name nor"]),
    ],
    ids=str,
)
def test_wrong_options(make_runner: MakeRunner, tmp_path: Path, options: Any, parts: list[str]) -> None:
    with pytest.raises(InvalidRunnerOptions) as raised:
        make_runner(runner={"attention": options}, output={"netcdf": str(tmp_path / "new" / "forecast.nc")})
    assert all(part in str(raised.value) for part in parts), raised.value
    assert not (tmp_path / "new").exists()


@pytest.fixture
def _one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be the only process of a group, which the host finds by torchrun's variables."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29517")
    # It would rename the loggers of the whole test session.
    monkeypatch.setattr("anemoi.inference.runners.parallel.enable_logging_name", lambda name: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_parallel_on_top(make_runner: MakeRunner) -> None:
    options = {
        "base_runner": "attention",
        "cluster": "distributed",
        "transformer": SDPA,
    }
    runner = make_runner(runner={"parallel": options})
    assert isinstance(runner, ParallelRunnerMixin)
    assert isinstance(runner, AttentionRunner)
    assert isinstance(runner, DefaultRunner)
    assert transformer_backends_of(runner) == {SDPA}


@pytest.mark.usefixtures("_one_process")
def test_parallel_names_its_own_key(make_runner: MakeRunner) -> None:
    with pytest.raises(InvalidRunnerOptions, match=r"^runner\.parallel has no option 'transfomer'"):
        make_runner(runner={"parallel": {"base_runner": "attention", "cluster": "distributed", "transfomer": SDPA}})


@pytest.mark.usefixtures("_one_process")
def test_parallel_with_the_environment(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SDPA)
    runner = make_runner(runner={"parallel": {"cluster": "distributed"}})
    assert isinstance(runner, ParallelRunnerMixin)
    assert transformer_backends_of(runner) == {SDPA}


def write_backends_of_rank(rank: int, configuration: dict[str, Any], folder: str) -> None:
    """Make the runner of one of two processes, as torchrun would start it, and write what its layers call."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29519"}
    runner = create_runner(RunConfiguration.load(configuration))
    (Path(folder) / str(rank)).write_text(" ".join(transformer_backends_of(runner)))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("by", ["run configuration", "environment"])
def test_parallel_has_one_backend_on_all_ranks(
    run_configuration: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    options = {"cluster": "distributed"}
    if by == "environment":
        monkeypatch.setenv(VARIABLE, SDPA)
    else:
        options |= {"base_runner": "attention", "transformer": SDPA}
    arguments = (run_configuration(runner={"parallel": options}), str(tmp_path))
    torch.multiprocessing.start_processes(write_backends_of_rank, arguments, nprocs=2, start_method="spawn")
    # The checkpoint was trained with another one.
    assert [(tmp_path / rank).read_text() for rank in "01"] == [SDPA, SDPA]


def test_parallel_forecast_of_two_processes(
    run_configuration: Callable[..., dict[str, Any]],
    forecast: Callable[..., dict[str, np.ndarray]],
    read_forecast: Callable[[Path], dict[str, np.ndarray]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "parallel.nc"
    cluster = {"manual": {"world_size": 2, "port": 29518}}
    runner = {"parallel": {"base_runner": "attention", "transformer": SDPA, "cluster": cluster}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_configuration(output={"netcdf": str(path)}, runner=runner)))
    command = [str(Path(sys.executable).parent / "anemoi-inference"), "run", "run.yaml"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        # The host finishes the forecast on CPUs, and then hangs at exit (D15): wait for the file.
        deadline = time.monotonic() + 120
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(1)
        result = _read_once_closed(path, read_forecast, deadline)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert result is not None, (tmp_path / "log").read_text()[-4000:]
    for name, values in forecast(runner={"attention": {"transformer": TRITON}}).items():
        assert np.abs(values - result[name]).max() <= 1e-5 * np.abs(values).max(), name


def _read_once_closed(path: Path, read: Callable[[Path], dict[str, np.ndarray]], deadline: float) -> Any:
    while time.monotonic() < deadline:
        try:
            fields = read(path)
        except (OSError, KeyError):
            fields = {}
        if fields and all(np.isfinite(values).all() and len(values) == 2 for values in fields.values()):
            return fields
        time.sleep(1)
    return None
