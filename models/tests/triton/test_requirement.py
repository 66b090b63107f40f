# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which Triton serves, and what is left without one."""

import os
import subprocess
import sys

import pytest

from anemoi.plugins.attention.models.triton import requirement

# In another process, since the modules are imported in this one.
PREPARE = {
    "absent": "import sys; sys.modules['triton'] = None",
    "too old": "import triton; triton.__version__ = '2.10.0'",
    "newer": "import triton; triton.__version__ = '3.10.0'",
}
COMMON = """
import torch
from anemoi.plugins.attention.models import attention
from anemoi.plugins.attention.models.errors import BackendUnavailable
from anemoi.plugins.attention.models.triton import attention as kernels

query = torch.randn(1, 1, 8, 8)
assert attention(query, query, query, backend="triton_attention").shape == query.shape
print(kernels.unsupported_reasons(query, query, query))
"""
REFUSES = """
for name in ("fused_attention", "dropout_mask", "load_configurations", "tune"):
    try:
        getattr(kernels, name)(query)
    except BackendUnavailable as error:
        print(error)
    else:
        raise SystemExit(name)
"""
SERVES = """
from anemoi.plugins.attention.models.triton.attention import launch
# Gluon is only used where it was verified.
assert launch.hopper is None
"""


def run(*parts: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a35_without_triton_the_package_imports_and_says_so() -> None:
    printed = run(PREPARE["absent"], COMMON, REFUSES)
    assert printed.count("triton cannot be imported") == 5
    assert printed.count("pip install 'triton>=3.3'") == 5


def test_a35_a36_too_old_triton_is_refused() -> None:
    printed = run(PREPARE["too old"], COMMON, REFUSES)
    assert printed.count("triton=2.10.0 (at least 3.3)") == 5
    assert "choose another backend" in printed


def test_a35_a36_newer_triton_serves_with_the_portable_kernels() -> None:
    assert "device=cpu (needs cuda)" in run(PREPARE["newer"], COMMON, SERVES)


@pytest.mark.parametrize(
    ("version", "served", "gluon"),
    [
        ("2.10", False, False),
        ("2.10.1", False, False),
        ("3.1.9", False, False),
        ("3.2.0", False, False),
        ("3.3", True, False),
        ("3.3.0+gitabc", True, False),
        ("3.6.0", True, True),
        ("3.6.1.post1", True, True),
        ("3.10", True, False),
        ("3.60.0", True, False),
        ("10.0", True, False),
        ("main-build", True, False),
    ],
)
def test_a36_versions_are_ordered_as_versions(version: str, served: bool, gluon: bool) -> None:
    assert requirement.is_served(version) is served
    assert requirement.has_verified_gluon(version) is gluon
