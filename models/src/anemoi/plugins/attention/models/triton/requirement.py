# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Whether Triton is there, and which releases of it serve."""

from __future__ import annotations

from importlib import import_module

import torch
from packaging.version import InvalidVersion
from packaging.version import Version

# 3.2 cannot compile a call with unpacked arguments.
MINIMUM = "3.3"
# Gluon is experimental and changes between releases: the kernels written in it run where they were verified.
_VERIFIED_GLUON = ((3, 6),)


def triton_problem() -> str | None:
    """Say why the kernels cannot be compiled here, or None if they can."""
    try:
        version = import_module("triton").__version__
    except (ImportError, AttributeError) as error:
        # Also an installation with a part missing.
        return f"triton cannot be imported: {error} (pip install 'triton>={MINIMUM}')"
    return None if is_served(version) else f"triton={version} (at least {MINIMUM})"


def kernels_available(device_type: str | None, elsewhere: str) -> tuple[bool, str]:
    """Answer a backend's ``available`` where its kernels run on GPUs, and torch computes the same on other devices.

    Parameters
    ----------
    device_type : str or None
        ``"cpu"`` or ``"cuda"``; None asks about the machine as a whole.
    elsewhere : str
        What runs on other devices.
    """
    on_gpu = device_type == "cuda" or (device_type is None and torch.cuda.is_available())
    if not on_gpu:
        return True, f"{elsewhere}, no GPU"
    if not torch.cuda.is_available():
        return False, "no CUDA device is visible (needs a GPU)"
    # The import system cannot be compiled. What a compiled call leaves out, the kernels' own refusal makes up for.
    problem = None if torch.compiler.is_compiling() else triton_problem()
    return problem is None, problem or "Triton kernels"


def is_served(version: str) -> bool:
    """Whether a release of Triton is new enough; one that is no version at all is left to try."""
    try:
        return Version(version).release >= Version(MINIMUM).release
    except InvalidVersion:
        return True


def has_verified_gluon(version: str) -> bool:
    """Whether the Hopper kernels were verified with a release of Triton."""
    try:
        return Version(version).release[:2] in _VERIFIED_GLUON
    except InvalidVersion:
        return False
