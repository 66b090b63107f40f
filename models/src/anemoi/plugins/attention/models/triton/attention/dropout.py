# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The dropout of the fused attention, written out."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import keep

_BLOCK = 64


def seed_tensor(dropout_seed: int | None, device: torch.device) -> Tensor:
    """Put a seed, drawn from torch's generator of the device if None, into an int64 tensor ``[1]``.

    A tensor, because reading a drawn number would synchronise; checkpointing replays it with the generator's state.
    """
    if dropout_seed is None:
        return torch.randint(1 << 62, (1,), device=device)
    return torch.full((1,), dropout_seed, dtype=torch.int64, device=device)


def dropout_mask(query: Tensor, key: Tensor, *, dropout_p: float, dropout_seed: int) -> Tensor:
    """Materialise which weights the dropout of ``fused_attention`` keeps.

    Parameters
    ----------
    query, key : Tensor
        ``[B, H, N_q, D]`` and ``[B, H, N_k, D]``; their shapes and device count.
    dropout_p : float
        Probability with which a weight is dropped.
    dropout_seed : int
        As given to ``fused_attention``.

    Returns
    -------
    Tensor
        Boolean ``[B, H, N_q, N_k]``, true where a weight is kept.
    """
    batch, heads, num_queries, _ = query.shape
    num_keys = key.shape[2]
    mask = torch.empty(batch, heads, num_queries, num_keys, dtype=torch.bool, device=query.device)
    grid = (batch * heads * triton.cdiv(num_queries, _BLOCK) * triton.cdiv(num_keys, _BLOCK),)
    with torch.cuda.device(query.device) if query.device.type == "cuda" else nullcontext():
        _dropout_mask_kernel[grid](
            mask, seed_tensor(dropout_seed, query.device), num_queries, num_keys, dropout_p, BLOCK=_BLOCK
        )
    return mask


@triton.jit
def _dropout_mask_kernel(mask_ptr, seed_ptr, num_queries, num_keys, dropout_p, BLOCK: tl.constexpr):
    """Write one ``[BLOCK, BLOCK]`` tile of one head's mask."""
    columns = tl.cdiv(num_keys, BLOCK)
    tiles = columns * tl.cdiv(num_queries, BLOCK)
    batch_head = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    query_index = (tile // columns) * BLOCK + tl.arange(0, BLOCK)[:, None]
    key_index = (tile % columns) * BLOCK + tl.arange(0, BLOCK)[None, :]
    kept = keep(tl.load(seed_ptr), batch_head, query_index, key_index, dropout_p)
    offsets = (tl.cast(batch_head, tl.int64) * num_queries + query_index) * num_keys + key_index
    tl.store(mask_ptr + offsets, kept, mask=(query_index < num_queries) & (key_index < num_keys))
