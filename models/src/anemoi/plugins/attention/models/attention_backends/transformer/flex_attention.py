# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""torch's flex_attention: compiled to a fused kernel on a GPU, unfused elsewhere."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import cache
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch import Tensor

from ...problem import UNLIMITED
from ...problem import AttentionProblem
from ..base import TransformerBackend
from . import transformer_backend_registry

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

LOGGER = logging.getLogger(__name__)

BLOCK_SIZE = 128
"""Rows and columns of a block of the mask; torch's default."""

_SMALLEST_HEAD_DIM_ON_GPU = 16
# A model has a few lengths and windows; a mask is small, but lives on the device.
_CACHED_MASKS = 32


@cache
def _say_once_that_it_is_unfused(device_type: str) -> None:
    # torch's own advice, to compile, does not hold here: there is no backward of the compiled kernel on a CPU.
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    LOGGER.warning(
        "flex_attention on device '%s': torch has no kernel with gradients there, computing the same attention unfused "
        "(exact, with an N x N matrix of scores).",
        device_type,
    )


@cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # fullgraph: beyond torch's limit of recompilations it raises, instead of computing N x N scores without a word.
    return torch.compile(flex_attention, fullgraph=True)


@transformer_backend_registry.register("flex_attention")
class FlexAttentionBackend(TransformerBackend):
    """A kernel that torch generates from the rule of the window, softcap and ALiBi."""

    name = "flex_attention"
    aliases = ("flex",)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    supports_softcap = True
    supports_alibi = True

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return whether torch can compile it for the GPU; CPUs need nothing."""
        on_gpu = device_type == "cuda" or (device_type is None and torch.cuda.is_available())
        if on_gpu and not torch.cuda.is_available():
            return False, "no CUDA device is visible (needs a GPU)"
        if device_type not in (None, "cpu", "cuda"):
            return False, f"device={device_type} (needs cuda or cpu)"
        return True, "compiled by torch" if on_gpu else "unfused on a CPU"

    def not_supported_reasons(self, problem: AttentionProblem) -> list[str]:
        """List why this backend cannot compute the problem; empty if it can."""
        reasons = super().not_supported_reasons(problem)
        if problem.query.is_cuda:
            head_dim = problem.query.shape[-1]
            if problem.query.dtype == torch.float64:
                reasons.append("dtype=torch.float64 (on a GPU, fp16, bf16 and fp32)")
            if head_dim < _SMALLEST_HEAD_DIM_ON_GPU:
                reasons.append(f"head_dim={head_dim} (at least {_SMALLEST_HEAD_DIM_ON_GPU} on a GPU)")
        return reasons

    def run(self, problem: AttentionProblem) -> Tensor:
        """Compute ``[B, H, N_q, D]`` in the dtype of the query."""
        # It brings torch's compiler, and Triton: only where it is used.
        from torch.nn.attention.flex_attention import flex_attention

        attend: Callable[..., Any] = flex_attention
        options: dict[str, Any] = {"scale": problem.softmax_scale, "score_mod": _score_mod(problem)}
        if problem.windowed:
            lengths = problem.query.shape[2], problem.key.shape[2]
            options["block_mask"] = window_mask(*lengths, problem.window_size, str(problem.query.device))
        # Within a torch.compile of the caller's, it is compiled there.
        if not torch.compiler.is_compiling():
            if problem.query.is_cuda:
                attend = _compiled()
            else:
                _say_once_that_it_is_unfused(problem.query.device.type)
        return attend(problem.query, problem.key, problem.value, **options)


def _score_mod(problem: AttentionProblem) -> Callable[..., Tensor] | None:
    """Return softcap and ALiBi as flex_attention takes them; numbers as tensors, so that a new one compiles nothing."""
    if problem.softcap == 0.0 and problem.alibi_slopes is None:
        return None
    device, dtype = problem.query.device, torch.promote_types(problem.query.dtype, torch.float32)
    softcap = torch.tensor(problem.softcap, dtype=dtype, device=device) if problem.softcap > 0.0 else None
    alignment = torch.tensor(problem.alignment, device=device)
    slopes = None
    if problem.alibi_slopes is not None:
        slopes = problem.alibi_slopes.to(device, dtype).expand(problem.query.shape[:2]).contiguous()

    def modify(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        out = score.to(dtype)
        if softcap is not None:
            out = softcap * torch.tanh(out / softcap)
        if slopes is not None:
            out = out - slopes[batch, head] * (row + alignment - column).abs()
        return out.to(score.dtype)

    return modify


@lru_cache(maxsize=_CACHED_MASKS)
def window_mask(num_queries: int, num_keys: int, window_size: tuple[int, int], device: str) -> BlockMask:
    """Make the block mask of a window without the mask of N_q x N_k that torch's own function goes through.

    Parameters
    ----------
    num_queries, num_keys : int
        Lengths.
    window_size : tuple of int
        ``(left, right)`` as in :class:`AttentionProblem`; causal attention is ``right = 0``.
    device : str
        Where the mask lives, for example ``"cuda:0"``.

    Returns
    -------
    BlockMask
        Blocks that no key of the window reaches are left out, blocks that are all visible are marked as such.
    """
    from torch.nn.attention.flex_attention import BlockMask

    longest = num_queries + num_keys
    left, right = (longest if side == UNLIMITED else min(side, longest) for side in window_size)
    lowest = torch.tensor(num_keys - num_queries - left, device=device)
    highest = torch.tensor(num_keys - num_queries + right, device=device)

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column >= row + lowest) & (column <= row + highest)

    first_row = torch.arange(0, num_queries, BLOCK_SIZE, device=device)[:, None]
    first_column = torch.arange(0, num_keys, BLOCK_SIZE, device=device)[None, :]
    last_row = (first_row + BLOCK_SIZE).clamp(max=num_queries) - 1
    last_column = (first_column + BLOCK_SIZE).clamp(max=num_keys) - 1
    touched = (last_column >= first_row + lowest) & (first_column <= last_row + highest)
    # A block that reaches over the end is never full: the kernel has to look at its elements.
    complete = (first_row + BLOCK_SIZE <= num_queries) & (first_column + BLOCK_SIZE <= num_keys)
    full = complete & (first_column >= last_row + lowest) & (last_column <= first_row + highest)
    return BlockMask.from_kv_blocks(
        *_ordered(touched & ~full),
        *_ordered(full),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=sees,
        seq_lengths=(num_queries, num_keys),
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return, of each row of blocks, how many there are and their columns, first ``[1, 1, rows(, columns)]``."""
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    columns = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], columns[None, None]
