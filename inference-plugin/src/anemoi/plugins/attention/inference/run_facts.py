# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What a runner of the host says about its run, in whichever release."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from anemoi.inference.precisions import PRECISIONS


def loads_checkpoint(runner: Any) -> bool:
    """Whether a runner uses the checkpoint's model; the host's tests have runners without one."""
    try:
        without_model = import_module("anemoi.inference.runners.testing").NoModelMixing
    except (ImportError, AttributeError):
        # Up to 0.7.
        return True
    return not isinstance(runner, without_model)


def device_of(runner: Any) -> torch.device:
    """Return where the model is to run; up to 0.7, the runner has its name."""
    return torch.device(runner.device)


def computing_dtype(runner: Any) -> torch.dtype | None:
    """Return the precision in which the layers compute; None where the weights decide, as autocast to fp32 does not."""
    dtype = runner.autocast
    return dtype if dtype in (torch.float16, torch.bfloat16) else None


def task_of(checkpoint: Any) -> str | None:
    """Return the task that the checkpoint was trained for; None also in releases before 0.13, which know none."""
    task: str | None = getattr(checkpoint, "task", None)
    return task


def add_precisions(missing: Mapping[str, torch.dtype]) -> None:
    """Let the host know further names of precisions."""
    # A plain dictionary up to 0.7.
    names = PRECISIONS if isinstance(PRECISIONS, dict) else PRECISIONS._mapping
    for name, dtype in missing.items():
        names.setdefault(name, dtype)
