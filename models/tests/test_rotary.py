# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Rotary position embeddings."""

import pytest
import torch

from anemoi.plugins.attention.models.rotary import rotate


def test_pairs_turn_as_complex_numbers() -> None:
    tensor = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    pairs = torch.complex(tensor[..., :4], tensor[..., 4:])
    angles = torch.arange(7)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    turned = pairs * torch.exp(1j * angles.double())
    torch.testing.assert_close(rotate(tensor), torch.cat([turned.real, turned.imag], dim=-1), rtol=1e-6, atol=1e-6)


def test_scores_depend_on_the_distance_alone() -> None:
    query, key = (torch.randn(1, 1, 1, 16, dtype=torch.float64).expand(1, 1, 12, 16) for _ in range(2))
    scores = rotate(query) @ rotate(key).transpose(-1, -2)
    for offset in range(-11, 12):
        diagonal = torch.diagonal(scores[0, 0], offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-5)


def test_cosine_and_sine_are_rounded_like_the_tensor() -> None:
    tensor = torch.randn(1, 1, 300, 16).to(torch.bfloat16)
    angles = torch.arange(300)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
    cosine, sine = angles.cos().bfloat16().float(), angles.sin().bfloat16().float()
    first, second = tensor[..., :8].float(), tensor[..., 8:].float()
    expected = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    got = rotate(tensor)
    assert got.dtype == torch.bfloat16
    # Cosines of far positions differ in the last bit between ways to take the power.
    torch.testing.assert_close(got.float(), expected.bfloat16().float(), rtol=2e-2, atol=2e-2)


def test_odd_head_dim_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head_dim=7 cannot be rotated.*even"):
        rotate(torch.randn(1, 1, 4, 7))
