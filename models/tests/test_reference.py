# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The oracle, pinned by hand-computed cases and numerical derivatives."""

import math

import numpy as np
import pytest
import torch

from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.problem import normalise_window
from anemoi.plugins.attention.models.reference import reference_attention
from anemoi.plugins.attention.models.reference import visible_keys


def test_two_keys_by_hand() -> None:
    query = torch.tensor([[[[2.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[10.0], [20.0]]]], dtype=torch.float64)
    first = math.exp(2.0) / (math.exp(2.0) + 1.0)
    out = reference_attention(make_problem(query, key, value, softmax_scale=1.0))
    assert out.item() == pytest.approx(10.0 * first + 20.0 * (1.0 - first), rel=1e-12)


def test_softcap_and_alibi_by_hand() -> None:
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    key = torch.tensor([[[[3.0], [5.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[0.0], [1.0]]]], dtype=torch.float64)
    # The single query sits at position 1: distances 1 and 0.
    scores = [2.0 * math.tanh(3.0 / 2.0) - 0.5, 2.0 * math.tanh(5.0 / 2.0)]
    problem = make_problem(query, key, value, softmax_scale=1.0, softcap=2.0, alibi_slopes=torch.tensor([0.5]))
    assert reference_attention(problem).item() == pytest.approx(1.0 / (1.0 + math.exp(scores[0] - scores[1])))


def test_window_is_aligned_bottom_right() -> None:
    # Two queries and four keys: the queries sit at positions 2 and 3.
    expected = torch.tensor([[False, True, True, True], [False, False, True, True]])
    assert torch.equal(visible_keys(2, 4, (1, 1), first_position=2), expected)
    assert torch.equal(visible_keys(2, 4, (1, 0), first_position=2), expected & visible_keys(2, 4, (-1, 0), 2))


@pytest.mark.parametrize("window_size", [None, 1, (2, 0)])
def test_derivatives(window_size: object) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4)]

    def compute(*qkv: torch.Tensor) -> torch.Tensor:
        slopes = torch.tensor([0.3, 0.1])
        return reference_attention(make_problem(*qkv, window_size=window_size, softcap=3.0, alibi_slopes=slopes))

    assert torch.autograd.gradcheck(compute, tensors)
    assert torch.autograd.gradgradcheck(compute, tensors)


def test_dropout_needs_its_mask() -> None:
    tensors = [torch.randn(1, 1, 4, 2) for _ in range(3)]
    problem = make_problem(*tensors, dropout_p=0.5)
    with pytest.raises(ValueError, match="dropout_mask"):
        reference_attention(problem)
    kept = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    torch.testing.assert_close(reference_attention(problem, kept), 2.0 * reference_attention(make_problem(*tensors)))


@pytest.mark.parametrize(
    ("window_size", "causal", "expected"),
    [
        (None, False, (-1, -1)),
        (-1, False, (-1, -1)),
        (0, False, (0, 0)),
        (7, False, (7, 7)),
        ((3, None), False, (3, -1)),
        (np.int64(7), False, (7, 7)),
        (10**30, False, (2**31 - 1, 2**31 - 1)),
        (7, True, (7, 0)),
        (None, True, (-1, 0)),
    ],
)
def test_a04_windows_are_normalised(window_size: object, causal: bool, expected: tuple[int, int]) -> None:
    assert normalise_window(window_size, causal=causal) == expected


@pytest.mark.parametrize("window_size", [-2, (1, -2), (1, 2, 3), 1.5, True, "512"])
def test_a04_wrong_windows_are_refused(window_size: object) -> None:
    with pytest.raises(ValueError, match="Allowed: an integer >= 0"):
        normalise_window(window_size)
