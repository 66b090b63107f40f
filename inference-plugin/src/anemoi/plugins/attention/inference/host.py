# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The places where anemoi-inference is extended; no other module touches its internals.

The host loads every entry point of ``anemoi.inference.runners`` when it looks a runner up, so the environment variables
count for each run in which this package is installed, whatever runner it uses.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from typing import Any

import torch
from anemoi.inference import checkpoint as host_checkpoint
from anemoi.inference import runner as host_runner
from anemoi.inference.runner import Runner
from anemoi.utils.logs import enable_logging_name

from .override import with_override
from .run_facts import add_precisions
from .selection import choose_backends
from anemoi.plugins.attention.models import enable
from anemoi.plugins.attention.models.checkpoint import load_checkpoint
from anemoi.plugins.attention.models.checkpoint import require_checkpoint

if TYPE_CHECKING:
    # Older releases have it in another place.
    from anemoi.inference.config.run import RunConfiguration

# Lightning's names, which anemoi-training writes into the checkpoint; the run fails on them otherwise.
_TRAINING_PRECISIONS = {"32-true": torch.float32, "16-true": torch.float16, "bf16-true": torch.bfloat16}
_TORCH_LOAD = torch.load


def install() -> None:
    """Make every runner check and apply the chosen backends; calling it again changes nothing."""
    enable()
    add_precisions(_TRAINING_PRECISIONS)
    if "__new__" not in vars(Runner):
        Runner.__new__ = staticmethod(_new)  # type: ignore[assignment, method-assign]
        Runner.__init__ = _choosing_first(Runner.__init__)  # type: ignore[method-assign]
        host_runner.torch = _TolerantTorch("torch")
        host_checkpoint.load_metadata = _diagnosing(host_checkpoint.load_metadata)


class _TolerantTorch(ModuleType):
    """``torch`` as the module of the host's runner sees it: its ``load`` opens checkpoints with missing symbols."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def load(*args: Any, **options: Any) -> Any:
        # The host's tests put a function in the place of torch.load that takes no more than it needs.
        return load_checkpoint(*args, **options) if torch.load is _TORCH_LOAD else torch.load(*args, **options)


def _new(cls: type[Runner], *args: Any, **kwargs: Any) -> Runner:
    return object.__new__(with_override(cls))


def _choosing_first(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``Runner.__init__``: names that are no backends fail before inputs and outputs are made."""

    @functools.wraps(init)
    def wrapper(self: Any, config: RunConfiguration, *args: Any, **kwargs: Any) -> None:
        _show_log_of_spawned_master(self)
        self.attention_choices = choose_backends(self.attention_options)
        init(self, config, *args, **kwargs)

    return wrapper


def _show_log_of_spawned_master(runner: Any) -> None:
    """Set logging up where the host has spawned this process and has not: else its log is lost."""
    spawned = multiprocessing.parent_process() is not None
    if spawned and getattr(runner, "is_master", False) and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO)
        enable_logging_name(f"rank{runner.compute_client.global_rank:02d}")


def _diagnosing(load_metadata: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the reading of a checkpoint's metadata, a run's first look at it: say what the file is instead."""

    @functools.wraps(load_metadata)
    def wrapper(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load_metadata(path, *args, **kwargs)
        except (OSError, ValueError, zipfile.BadZipFile):
            require_checkpoint(Path(path))
            raise

    return wrapper
