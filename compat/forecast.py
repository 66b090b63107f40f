# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""One forecast step of the small model by the installed release of anemoi-inference."""

from __future__ import annotations

import datetime
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_facts import VARIABLES
from torch import Tensor


def forecast(checkpoint: Path, state: Tensor, runner: Any) -> Tensor:
    """Return ``[N, V]``, six hours after the state ``[steps, N, V]``."""
    from anemoi.inference.runners import create_runner

    config = configuration(checkpoint, runner)
    points = np.linspace(-60, 60, state.shape[1])
    fields = {name: state[..., index].numpy() for index, name in enumerate(VARIABLES)}
    start = {"date": datetime.datetime(1996, 1, 8), "fields": fields, "latitudes": points, "longitudes": 2 * points}
    runner_made = create_runner(config)
    if "input_state" in inspect.signature(runner_made.run).parameters:
        (step,) = runner_made.run(input_state=start, lead_time=6)
    else:
        # From 0.11, a state for each dataset.
        (steps,) = runner_made.run(input_states={"data": start}, lead_time=6)
        step = steps["data"]
    return torch.stack([torch.from_numpy(step["fields"][name]) for name in VARIABLES], -1)


def configuration(checkpoint: Path, runner: Any) -> Any:
    """Return a run configuration as this release has it."""
    wanted = {"checkpoint": str(checkpoint), "device": "cpu", "precision": "float32", "runner": runner}
    wanted |= {"date": "1996-01-08", "lead_time": 6, "input": "dummy", "output": "none"}
    try:
        from anemoi.inference.config.run import RunConfiguration
    except ImportError:
        # Up to 0.4.
        from anemoi.inference.config import Configuration as RunConfiguration
    return RunConfiguration(**wanted)
