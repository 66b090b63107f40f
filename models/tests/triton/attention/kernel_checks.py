# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Compare the fused attention with the oracle, forward and gradients."""

from collections.abc import Callable

import torch
from policy import assert_matches
from torch import Tensor

from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention

NAMES = ("out", "d_query", "d_key", "d_value")


def draw(
    *shape: int, device: torch.device, dtype: torch.dtype = torch.float32, num_keys: int | None = None, seed: int = 0
) -> list[Tensor]:
    """Draw query, key, value and the gradient of the output from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, rows, head_dim = shape
    lengths = [rows, num_keys or rows, num_keys or rows, rows]
    tensors = [torch.randn(batch, heads, length, head_dim, generator=generator) for length in lengths]
    return [tensor.to(device, dtype) for tensor in tensors]


def with_gradients(function: Callable, query: Tensor, key: Tensor, value: Tensor, d_out: Tensor) -> tuple[Tensor, ...]:
    """Return ``function(query, key, value)`` and the three gradients."""
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    out = function(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, d_out.to(out.dtype)))


def oracle(tensors: list[Tensor], dropout_mask: Tensor | None = None, **options: object) -> tuple[Tensor, ...]:
    """Return output and gradients of the oracle in the dtype of the tensors."""
    return with_gradients(lambda *x: reference_attention(make_problem(*x, **options), dropout_mask), *tensors)


def check(
    tensors: list[Tensor], magnitude: float = 1.0, dropout_mask: Tensor | None = None, **options: object
) -> tuple[Tensor, ...]:
    """Compare output and gradients with the oracle and return them.

    ``options`` are those of ``fused_attention``; ``magnitude`` is the factor the tensors were drawn with.
    """
    # Imported late, after conftest.py has decided on the interpreter.
    from anemoi.plugins.attention.models.triton.attention import fused_attention

    got = with_gradients(lambda *x: fused_attention(*x, **options), *tensors)
    shared = {name: option for name, option in options.items() if name != "dropout_seed"}
    expected = oracle([tensor.double() for tensor in tensors], dropout_mask, **shared)
    eager = oracle(tensors, dropout_mask, **shared)
    for name, *results in zip(NAMES, got, expected, eager, strict=True):
        assert results[0].isfinite().all(), name
        assert_matches(*results, name, magnitude)
    return got
