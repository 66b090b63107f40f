# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The commands of the demo: each step is one a user would type."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

CHECKPOINT = "output/inference-last.ckpt"
DATASET = "blizzard-1996.zarr"
TRANSFORMER_VARIABLE = "ANEMOI_INFERENCE_TRANSFORMER_ATTENTION_BACKEND"
ATTENTION_VARIABLES = (TRANSFORMER_VARIABLE, "ANEMOI_INFERENCE_GRAPHTRANSFORMER_ATTENTION_BACKEND")

# One line of the inference log, for example
# "Attention backends: transformer=triton_attention (banded torch path, no GPU) in 2 layers, from the checkpoint; ..."
_LOG_LINE = re.compile(r"Attention backends: (.*)")
_LOG_ENTRY = re.compile(r"\b(graph_transformer|transformer)=(\w+) .*?\bin (\d+) layers?, from ([^,;]+)")


class StepFailed(RuntimeError):
    """A command of the demo ended with an error."""


@dataclass(frozen=True)
class InferenceRun:
    """One way to choose the attention backend of a forecast."""

    name: str
    title: str
    runner: dict[str, Any] | None = None
    """What the run configuration says under ``runner:``; None leaves it out."""
    environment: dict[str, str] = field(default_factory=dict)


RUNS = (
    InferenceRun("as-trained", "as trained"),
    InferenceRun(
        "run-configuration",
        "run configuration",
        runner={"attention": {"transformer": "scaled_dot_product_attention"}},
    ),
    InferenceRun(
        "environment", "environment variable", environment={TRANSFORMER_VARIABLE: "scaled_dot_product_attention"}
    ),
)


@dataclass(frozen=True)
class Backend:
    """What one kind of layer computed its attention with, as the run's log says."""

    kind: str
    name: str
    num_layers: int
    source: str


def run_command(command: Sequence[str], directory: Path, log: Path | None = None) -> float:
    """Run one command, shown first, and return its time in seconds.

    Parameters
    ----------
    command : sequence of str
        The command.
    directory : Path
        Where to run it.
    log : Path or None
        Where its output goes; None shows it.

    Raises
    ------
    StepFailed
        If the command ends with an error; the message has the end of its log.
    """
    print(f"\n$ {shlex.join(command)}", flush=True)
    return _run(command, directory, log, {})


def _run(command: Sequence[str], directory: Path, log: Path | None, environment: dict[str, str]) -> float:
    # A variable of the caller's shell would decide for the runs that set none.
    inherited = {name: value for name, value in os.environ.items() if name not in ATTENTION_VARIABLES}
    # Threads that wait by spinning take the core from those that work, where other programs run too: half the speed.
    inherited.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = time.monotonic()
    if log is None:
        status = subprocess.run(command, cwd=directory, env=inherited | environment, check=False).returncode
    else:
        with log.open("w") as stream:
            status = subprocess.run(
                command,
                cwd=directory,
                env=inherited | environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
    if status != 0:
        tail = "" if log is None else f" The end of {log}:\n" + "\n".join(log.read_text().splitlines()[-15:])
        raise StepFailed(f"'{shlex.join(command)}' ended with status {status}.{tail}")
    return time.monotonic() - start


def write_run_configuration(run: InferenceRun, date: datetime, lead_time: str, directory: Path) -> Path:
    """Write the run configuration of one forecast, complete, so that it can be run again by hand.

    Returns
    -------
    Path
        The file, relative to the directory of the demo.
    """
    stem = f"{run.name}/{date:%Y-%m-%dT%H}"
    configuration: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "date": f"{date:%Y-%m-%dT%H:%M:%S}",
        "lead_time": lead_time,
        "input": {"dataset": DATASET},
        "output": {"netcdf": f"forecasts/{stem}.nc"},
    }
    if run.runner is not None:
        configuration["runner"] = run.runner
    path = Path("runs", f"{stem}.yaml")
    for folder in ("runs", "forecasts", "logs"):
        (directory / folder / run.name).mkdir(parents=True, exist_ok=True)
    (directory / path).write_text(yaml.safe_dump(configuration, sort_keys=False))
    return path


def forecast(run: InferenceRun, dates: Sequence[datetime], lead_time: str, directory: Path) -> float:
    """Make the forecasts of one run with ``anemoi-inference run``, two at a time, and return the seconds they took."""
    configurations = [write_run_configuration(run, date, lead_time, directory) for date in dates]
    variables = "".join(f"{name}={value} " for name, value in run.environment.items())
    print(f"\n$ {variables}anemoi-inference run {configurations[0]}   (and {len(dates) - 1} more dates)", flush=True)
    # Each process is mostly start-up; side by side, one thread each is faster than two that wait for each other.
    environment = {"OMP_NUM_THREADS": "1"} | run.environment

    def make(configuration: Path) -> None:
        log = directory / "logs" / run.name / f"{configuration.stem}.log"
        _run(["anemoi-inference", "run", str(configuration)], directory, log, environment)
        print(f"  {configuration.stem}", end="", flush=True)

    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        list(pool.map(make, configurations))
    print(flush=True)
    return time.monotonic() - start


def backends_of(run: InferenceRun, directory: Path) -> list[Backend]:
    """Read from the logs of a run which backend each kind of attention layer used.

    Raises
    ------
    StepFailed
        If a log does not say it, or if two forecasts of the run disagree.
    """
    found: list[Backend] | None = None
    for log in sorted((directory / "logs" / run.name).glob("*.log")):
        backends = parse_backends(log.read_text())
        if not backends or (found is not None and backends != found):
            raise StepFailed(f"{log} says {backends} about its attention backends, others of the run say {found}.")
        found = backends
    if found is None:
        raise StepFailed(f"There is no log of the run '{run.name}' in {directory}.")
    return found


def parse_backends(log: str) -> list[Backend]:
    """Return what the attention line of an inference log says; nothing if there is no such line."""
    line = _LOG_LINE.search(log)
    entries = _LOG_ENTRY.findall(line.group(1)) if line else []
    return [Backend(kind, name, int(layers), source.rstrip(".")) for kind, name, layers, source in entries]


def say(text: str) -> None:
    """Print a headline of the demo."""
    print(f"\n== {text}", flush=True)
    sys.stdout.flush()
