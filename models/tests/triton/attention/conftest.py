# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fixtures of the attention kernels' tests: where they run, and uninitialised memory full of NaN."""

import os
from collections.abc import Iterator

import pytest
import torch

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU is present, so the kernels are compiled for it"
)


@pytest.fixture(params=[pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU under Triton's interpreter, and a GPU with compiled kernels."""
    return torch.device(request.param)


@pytest.fixture(params=["sm_90", "sm_80"])
def architecture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the configurations of one architecture: sm_90 loads through descriptors, sm_80 through pointers."""
    from anemoi.plugins.attention.models.triton.attention import configurations

    monkeypatch.setattr(configurations, "architecture_of", lambda _: request.param)
    return request.param


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill what torch.empty returns with NaN, so that an element nobody writes is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
