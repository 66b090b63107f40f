# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fixtures of the graph-attention kernels' tests: where they run, and uninitialised memory full of NaN."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# With --import-mode=importlib no test folder is on the path by itself.
sys.path.insert(0, str(Path(__file__).parents[2] / "graph"))

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU is present, so the kernels are compiled for it"
)


@pytest.fixture(params=[pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU under Triton's interpreter, and a GPU with compiled kernels."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill what torch.empty returns with NaN, so that an element nobody writes is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
