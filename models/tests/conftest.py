# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Set up what the tests of the models package share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Helpers such as policy.py: with --import-mode=importlib no test folder is on the path by itself.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "triton" / "attention")]

if not torch.cuda.is_available():
    # Before Triton is imported: without a GPU its kernels can only be interpreted.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def enabled_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable the plugin for one test, without what the user's environment would override."""
    # Not above: it imports Triton, and anemoi-models, which some of these tests do without.
    from anemoi.plugins.attention.models import disable
    from anemoi.plugins.attention.models import enable
    from anemoi.plugins.attention.models.environment import VARIABLES

    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    enable()
    yield
    disable()
