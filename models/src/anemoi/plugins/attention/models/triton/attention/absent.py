# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the package offers where Triton is missing or too old: the same names, which say so."""

from __future__ import annotations

from typing import Any
from typing import NoReturn

from ...errors import BackendUnavailable
from ..requirement import triton_problem


def unsupported_reasons(*_: Any) -> list[str]:
    """Say why the kernels cannot compute any attention here."""
    return [str(triton_problem())]


def _unavailable(*_: Any, **__: Any) -> NoReturn:
    """Raise BackendUnavailable, since there is no Triton that serves."""
    raise BackendUnavailable(
        f"The Triton attention cannot run here: {triton_problem()}. Install that release, or choose another backend."
    )


fused_attention = _unavailable
dropout_mask = _unavailable
load_configurations = _unavailable
tune = _unavailable
