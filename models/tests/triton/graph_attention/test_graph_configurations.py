# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The graph-attention kernels compile, without a GPU: no spill, and within the target's shared memory.

Triton's interpreter replaces its compiler for a whole process, so the compilations run in another one.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from anemoi.plugins.attention.models.triton.graph_attention import configurations

SHARED_MEMORY = {
    "sm_80": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx90a": 64 * 1024,
    "gfx942": 64 * 1024,
}
# The assembler parks up to this many bytes although registers are left.
PARKED = 16
# Kernel, dtype, H, C, A (0: edges are given), edges per node (above 4: several steps).
SAMPLE = [
    ("sm_80", "forward", "bfloat16", 16, 64, 0, 12),
    ("sm_80", "backward_destination", "float32", 16, 64, 11, 12),
    ("sm_90", "forward", "bfloat16", 16, 64, 11, 3),
    ("sm_90", "forward", "float16", 6, 24, 0, 12),
    ("sm_90", "backward_destination", "bfloat16", 16, 64, 0, 12),
    ("sm_90", "backward_destination", "bfloat16", 16, 64, 11, 12),
    ("sm_90", "backward_destination", "bfloat16", 16, 64, 11, 3),
    ("sm_90", "backward_source", "bfloat16", 16, 64, 0, 12),
    ("sm_90", "backward_attributes", "bfloat16", 16, 64, 11, 12),
    ("sm_100", "backward_destination", "float16", 16, 64, 11, 12),
    ("gfx942", "forward", "bfloat16", 16, 64, 11, 12),
    ("gfx942", "backward_destination", "bfloat16", 16, 64, 0, 12),
]


def compile_all(cases: list) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "compile_graph_configurations.py")],
        input=json.dumps(cases),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def assert_fit(cases: list) -> None:
    results = compile_all(cases)
    assert len(results) == len(cases)
    failures = [
        (case, result)
        for case, result in zip(cases, results, strict=True)
        if "error" in result or result["spilled"] > PARKED or result["shared"] > SHARED_MEMORY[case[0]]
    ]
    assert not failures, "\n".join(map(str, failures))


def test_g63_sample_compiles() -> None:
    assert_fit(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SHARED_MEMORY)
def test_g63_every_configuration_compiles(architecture: str) -> None:
    kernels = [*configurations.KERNELS, "backward_attributes"]
    cases = [
        (architecture, kernel, dtype, 4, head_dim, num_attributes, degree)
        for kernel, dtype, head_dim, num_attributes, degree in product(
            kernels, ("bfloat16", "float16", "float32"), (16, 32, 64, 128, 256), (0, 11), (3, 12)
        )
        if num_attributes or kernel != "backward_attributes"
        if not num_attributes or (kernel != "backward_source" and head_dim <= configurations.MAX_FACTORISED_HEAD_DIM)
    ]
    assert_fit(cases)


def test_configurations_fit_any_size() -> None:
    for kernel, dtype, factorised in product(configurations.KERNELS, configurations.DTYPES, (False, True)):
        for head_dim in (1, 6, 64, 100, 256, 1000):
            found = configurations.configuration(kernel, dtype, head_dim, factorised=factorised)
            assert found.nodes >= 1
            assert found.block_e >= 1
            assert found.nodes >= 16 or not factorised or kernel == "backward_source"
            # A factorised program works on one head.
            assert found.heads == 1


def test_groups_keep_the_grid_small() -> None:
    assert configurations.groups(1, 16, single=False, accumulates=True) == 1
    assert configurations.groups(33_000, 16, single=True, accumulates=True) * 8192 >= 33_000 * 16
    assert configurations.groups(2**31, 16, single=False, accumulates=False) == 17


@pytest.mark.parametrize(("length", "block"), [(1, 16), (6, 16), (16, 16), (17, 32), (64, 64), (1000, 1024)])
def test_block_size(length: int, block: int) -> None:
    assert configurations.block_size(length) == block
