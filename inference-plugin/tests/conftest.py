# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Set up what the tests of the inference plugin share: runners on the real, shortly trained checkpoint."""

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anemoi.inference.config.run import RunConfiguration
from anemoi.inference.runner import Runner
from anemoi.inference.runners import create_runner

from anemoi.plugins.attention.inference import host
from anemoi.plugins.attention.models import disable
from anemoi.plugins.attention.models.environment import VARIABLES

MakeConfig = Callable[..., dict[str, Any]]
MakeRunner = Callable[..., Runner]


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Set first, so that pytest also removes what `env:` of a run configuration sets.
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    host.install()
    yield
    disable()


@pytest.fixture
def run_configuration(request: pytest.FixtureRequest) -> MakeConfig:
    """Return a function that makes a run configuration: six hours from the blizzard data, nothing written."""

    def make(**changes: Any) -> dict[str, Any]:
        return {
            "checkpoint": str(request.getfixturevalue("blizzard_checkpoint")),
            "date": "1996-01-17T12:00:00",
            "lead_time": "6h",
            "device": "cpu",
            "input": {"dataset": str(request.getfixturevalue("blizzard_dataset"))},
            "output": "none",
        } | changes

    return make


@pytest.fixture
def make_runner(run_configuration: MakeConfig) -> MakeRunner:
    """Return a function that makes the runner of a run configuration, as `anemoi-inference run` does."""
    return lambda **changes: create_runner(RunConfiguration.load(run_configuration(**changes)))


@pytest.fixture
def read_forecast() -> Callable[[Path], dict[str, Any]]:
    """Return a function that reads the fields of a forecast in netCDF, each ``[time, values]``."""

    def read(path: Path) -> dict[str, Any]:
        import xarray

        with xarray.open_dataset(path) as data:
            return {name: data[name].values for name in ("2t", "10u", "10v", "msl", "u_500", "v_500")}

    return read


@pytest.fixture
def forecast(
    make_runner: MakeRunner, read_forecast: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> Callable[..., Any]:
    """Return a function that runs a forecast and returns its fields by name."""

    def run(**changes: Any) -> dict[str, Any]:
        # The host refuses a path that it has written before in this process.
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.nc"
        make_runner(output={"netcdf": str(path)}, **changes).execute()
        return read_forecast(path)

    return run
