# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Every shipped configuration compiles, without a GPU: no spill, and within the target's shared memory.

Triton's interpreter replaces its compiler for a whole process, so the compilations run in another one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anemoi.plugins.attention.models.triton.attention import candidates
from anemoi.plugins.attention.models.triton.attention import configurations

SHARED_MEMORY = {
    "sm_80": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_90/explicit": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx90a": 64 * 1024,
    "gfx942": 64 * 1024,
}
# One of each kernel and target, the largest tiles, and the smallest shared memory (A23).
SAMPLE = [
    ("sm_80", "forward", "bfloat16", 64, True),
    ("sm_89", "forward", "float32", 256, False),
    ("sm_89", "backward_query", "bfloat16", 256, True),
    ("sm_90", "forward", "bfloat16", 64, True),
    ("sm_90", "backward_query", "bfloat16", 64, True),
    ("sm_90", "backward_key_value", "bfloat16", 64, True),
    ("sm_90/explicit", "forward", "bfloat16", 64, False),
    ("sm_90/explicit", "backward_query", "bfloat16", 64, True),
    ("sm_90/explicit", "backward_key_value", "bfloat16", 64, True),
    ("sm_100", "forward", "float16", 64, False),
    ("gfx90a", "backward_key_value", "float32", 256, False),
    ("gfx942", "forward", "bfloat16", 64, True),
    ("gfx942", "backward_query", "bfloat16", 256, True),
]


def compile_all(cases: list) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "compile_configurations.py")],
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
        if "error" in result or result["spilled"] or result["shared"] > SHARED_MEMORY[case[0]]
    ]
    assert not failures, "\n".join(map(str, failures))


def test_a23_g63_sample_compiles() -> None:
    assert_fit(SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", configurations.ARCHITECTURES)
def test_a23_g63_every_configuration_compiles(architecture: str) -> None:
    cases = [(a, d, str(t).removeprefix("torch."), *rest) for a, d, t, *rest in configurations.shipped()]
    assert_fit([case for case in cases if case[0] == architecture])


@pytest.mark.slow
def test_every_explicit_configuration_compiles() -> None:
    cases = [
        ("sm_90/explicit", direction, "bfloat16", head_dim, windowed)
        for direction in configurations.DIRECTIONS
        for head_dim in (32, 64, 128)
        for windowed in (False, True)
        if configurations.explicit_configuration("sm_90", direction, torch.bfloat16, head_dim, windowed=windowed)
    ]
    assert_fit(cases)


@pytest.mark.slow
def test_every_explicit_candidate_of_the_tuner_compiles() -> None:
    # Those of the portable kernels may not fit some GPU; the tuner then skips them.
    cases = [
        ("sm_90", direction, "bfloat16", head_dim, windowed, number)
        for direction in configurations.DIRECTIONS
        for head_dim in (32, 64, 128)
        for windowed in (False, True)
        for number, config in enumerate(
            candidates.candidates(configurations.Key("sm_90", direction, torch.bfloat16, head_dim, windowed))
        )
        if config.explicit
    ]
    results = compile_all(cases)
    assert not [pair for pair in zip(cases, results, strict=True) if "error" in pair[1]]


def test_g63_no_descriptors_on_amd() -> None:
    for architecture, direction, dtype, head_dim, windowed in configurations.shipped():
        if architecture.startswith("gfx"):
            found = configurations.configuration(architecture, direction, dtype, head_dim, windowed=windowed)
            assert not found.descriptors


@pytest.mark.parametrize(("head_dim", "block"), [(1, 16), (8, 16), (16, 16), (24, 32), (72, 128), (192, 256)])
def test_head_dim_block(head_dim: int, block: int) -> None:
    assert configurations.head_dim_block(head_dim) == block
