# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What a runner of the host says about its run."""

from __future__ import annotations

from typing import Any

import torch
from anemoi.inference.runners.testing import NoModelMixing


def loads_checkpoint(runner: Any) -> bool:
    """Whether a runner uses the checkpoint's model; the host's tests have runners without one."""
    return not isinstance(runner, NoModelMixing)


def computing_dtype(runner: Any) -> torch.dtype | None:
    """Return the precision in which the layers compute; None where the weights decide, as autocast to fp32 does not."""
    dtype = runner.autocast
    return dtype if dtype in (torch.float16, torch.bfloat16) else None
