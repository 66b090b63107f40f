# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Finding the runner that the runner ``attention`` builds on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from anemoi.inference.checkpoint import Checkpoint
from anemoi.inference.runner import Runner
from anemoi.inference.runners import runner_registry

from .options import InvalidRunnerOptions
from .run_facts import task_of

if TYPE_CHECKING:
    # Older releases have it in another place.
    from anemoi.inference.config.run import RunConfiguration

LOGGER = logging.getLogger(__name__)

OWN_NAME = "attention"
LOW_LEVEL = "simple"


@dataclass(frozen=True)
class BaseRunner:
    """A runner's class and what the run configuration passes to it."""

    runner_class: type[Runner]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def find_base_runner(spec: object, config: RunConfiguration) -> BaseRunner:
    """Look up the runner to build on.

    Parameters
    ----------
    spec : str, dict or None
        A name, or ``{name: options}``, as under ``runner:``; ``"auto"`` and None follow the checkpoint's task.
    config : RunConfiguration
        The run configuration, for the checkpoint.

    Raises
    ------
    InvalidRunnerOptions
        If it is no runner, or one that can't be built on.
    """
    name, args, kwargs = _parse("auto" if spec is None else spec)
    if name == "auto":
        name = _runner_of_task(config)
    if name == OWN_NAME:
        raise _invalid(spec, "'attention' can't be its own base", "Name another runner, or leave base_runner out.")
    if name == LOW_LEVEL:
        raise _invalid(spec, "'simple' is called from Python and takes no run configuration", "Name another runner.")
    found = runner_registry.lookup(name, return_none=True)
    if found is None:
        raise _invalid(spec, f"there is no runner {name!r}", "Correct the name.")
    if not isinstance(found, type):
        # What the registry keeps of a runner whose import failed: raises that error.
        found()
    if not (isinstance(found, type) and issubclass(found, Runner)):
        raise _invalid(
            spec,
            f"{name!r} makes other runners and can't be built on",
            f"Turn them round: 'runner: {{{name}: {{base_runner: {OWN_NAME}}}}}'.",
        )
    return BaseRunner(found, args, kwargs)


def _parse(spec: object) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Read a runner as ``Registry.from_config`` does."""
    if isinstance(spec, str):
        return _dashed(spec), (), {}
    if isinstance(spec, dict) and isinstance(spec.get("_type"), str):
        return _dashed(spec["_type"]), (), {key: value for key, value in spec.items() if key != "_type"}
    if isinstance(spec, dict) and len(spec) == 1 and isinstance(next(iter(spec)), str):
        ((name, options),) = spec.items()
        if isinstance(options, dict):
            return _dashed(name), (), options
        return _dashed(name), tuple(options) if isinstance(options, list) else (options,), {}
    raise _invalid(spec, "it is neither a name nor {name: options}", "Write it as you would under 'runner:'.")


def _dashed(name: str) -> str:
    # The registry takes both spellings.
    return name.replace("_", "-")


def _runner_of_task(config: RunConfiguration) -> str:
    # The configuration has read the file by now, if it was given one.
    patch: Any = config.patch_metadata
    task = task_of(Checkpoint(config.checkpoint, patch_metadata=patch))
    if task is not None:
        return _dashed(task)
    # Releases before 0.13 know no tasks, and call it otherwise.
    name = "forecaster" if "forecaster" in runner_registry.registered else "default"
    if hasattr(Checkpoint, "task"):
        LOGGER.warning("The checkpoint names no task: taking the runner '%s'.", name)
    return name


def _invalid(spec: object, problem: str, advice: str) -> InvalidRunnerOptions:
    excluded = (OWN_NAME, "parallel", LOW_LEVEL)
    allowed = ", ".join(name for name in runner_registry.registered if name not in excluded)
    return InvalidRunnerOptions(f"base_runner={spec!r}: {problem}. Allowed: {allowed}. {advice}")
