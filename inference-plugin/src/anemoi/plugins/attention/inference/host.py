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
from collections.abc import Callable
from typing import Any

import torch
from anemoi.inference.config.run import RunConfiguration
from anemoi.inference.device import get_available_device
from anemoi.inference.precisions import PRECISIONS
from anemoi.inference.runner import Runner

from .options import AttentionOptions
from .override import with_override
from .selection import choose_backends
from anemoi.plugins.attention.models import enable

# Lightning's names, which anemoi-training writes into the checkpoint; the run fails on them otherwise.
_TRAINING_PRECISIONS = {"32-true": torch.float32, "16-true": torch.float16, "bf16-true": torch.bfloat16}


def install() -> None:
    """Make every runner check and apply the chosen backends; calling it again changes nothing."""
    enable()
    for name, dtype in _TRAINING_PRECISIONS.items():
        PRECISIONS._mapping.setdefault(name, dtype)
    if "__new__" not in vars(Runner):
        Runner.__new__ = staticmethod(_new)  # type: ignore[assignment, method-assign]
        Runner.__init__ = _choosing_first(Runner.__init__)  # type: ignore[method-assign]


def _new(cls: type[Runner], *args: Any, **kwargs: Any) -> Runner:
    return object.__new__(with_override(cls))


def _choosing_first(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``Runner.__init__``: a backend that can't be had fails before inputs and outputs are made."""

    @functools.wraps(init)
    def wrapper(self: Any, config: RunConfiguration, *args: Any, **kwargs: Any) -> None:
        options = getattr(self, "attention_options", None) or AttentionOptions()
        self.attention_choices = choose_backends(options, _device_type(config))
        init(self, config, *args, **kwargs)

    return wrapper


def _device_type(config: RunConfiguration) -> str:
    return torch.device(config.device).type if config.device is not None else get_available_device().type
