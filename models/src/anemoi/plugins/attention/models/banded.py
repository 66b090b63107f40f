# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Attention in plain torch with memory O(N * window): for CPUs, and wherever no kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from .problem import UNLIMITED
from .problem import AttentionProblem
from .reference import attention_weights
from .reference import visible_keys

# Below this many query rows a tile is all overhead; measured on two cores.
_SMALLEST_TILE = 256
# Up to this many scores a head, one dense tile is faster than several.
_DENSE_SCORES = 1024 * 1024


@dataclass(frozen=True)
class QueryTile:
    """A stretch of query rows with the keys that its windows reach."""

    query: Tensor
    """``[B, H, T, D]``."""
    key: Tensor
    """``[B, H, K, D]``, K at most ``T + left + right`` rounded up to tiles."""
    value: Tensor
    first_position: int
    """Position of the first query row, counted from the first key of the tile."""


def query_tiles(problem: AttentionProblem, tile_size: int | None = None) -> Iterator[QueryTile]:
    """Cut a windowed attention into tiles of query rows.

    Parameters
    ----------
    problem : AttentionProblem
        The attention; sides without a limit reach all keys.
    tile_size : int or None
        Rows a tile; by default as many as the window is wide.
    """
    num_queries, num_keys = problem.query.shape[2], problem.key.shape[2]
    left, right = (num_queries + num_keys if side == UNLIMITED else side for side in problem.window_size)
    if tile_size is None:
        tile_size = max([_SMALLEST_TILE, *(side for side in problem.window_size if side < num_keys)])
        if num_queries * num_keys <= _DENSE_SCORES:
            tile_size = max(num_queries, num_keys)
    limited = UNLIMITED not in problem.window_size
    # Under a window, keys are split once and joined a tile at a time: the gradient of a slice would be as long as all
    # keys, for each tile; that of a join touches the tile's own keys alone. Where a side reaches all keys, a join would
    # copy them for each tile, and a slice is a view.
    keys, values = (tensor.split(tile_size, dim=2) if limited else () for tensor in (problem.key, problem.value))
    last = (num_keys - 1) // tile_size
    for start in range(0, num_queries, tile_size):
        stop = min(start + tile_size, num_queries)
        first_tile = min(max(start + problem.alignment - left, 0) // tile_size, last)
        end_tile = max(first_tile, min(max(stop - 1 + problem.alignment + right, 0) // tile_size, last)) + 1
        reach = slice(first_tile * tile_size, end_tile * tile_size)
        yield QueryTile(
            problem.query[:, :, start:stop],
            torch.cat(keys[first_tile:end_tile], dim=2) if limited else problem.key[:, :, reach],
            torch.cat(values[first_tile:end_tile], dim=2) if limited else problem.value[:, :, reach],
            start + problem.alignment - first_tile * tile_size,
        )


def banded_attention(problem: AttentionProblem, tile_size: int | None = None) -> Tensor:
    """Compute an attention tile by tile, with torch's fused kernel where that offers the options.

    Softcap, ALiBi and dropout are written out; then the scores of one tile exist at a time (the backward computes
    them again), and half-precision inputs are computed in fp32.

    Parameters
    ----------
    problem : AttentionProblem
        The attention, with every option.
    tile_size : int or None
        Query rows a tile; by default as many as the window is wide.

    Returns
    -------
    Tensor
        ``[B, H, N_q, D]`` in the dtype of the query. Differentiable, and twice with softcap, ALiBi or dropout or
        under ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``.
    """
    if problem.softcap == 0.0 and problem.alibi_slopes is None and problem.dropout_p == 0.0:
        return tiled_scaled_dot_product_attention(problem, tile_size)

    def attend(query: Tensor, key: Tensor, value: Tensor, first_position: int) -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        weights = attention_weights(query.to(dtype), key.to(dtype), problem, first_position=first_position)
        return (dropout(weights, problem.dropout_p) @ value.to(dtype)).to(query.dtype)

    return _tile_by_tile(problem, tile_size, attend, recompute=True)


def tiled_scaled_dot_product_attention(problem: AttentionProblem, tile_size: int | None = None) -> Tensor:
    """Compute an attention without softcap and ALiBi by torch's fused kernel; a window only ever needs tiles of mask.

    Returns
    -------
    Tensor
        ``[B, H, N_q, D]`` in the dtype of the query.
    """
    options: dict[str, Any] = {"dropout_p": problem.dropout_p, "scale": problem.softmax_scale}
    causal = problem.window_size == (UNLIMITED, 0) and problem.alignment == 0
    if causal or not problem.windowed:
        with _without_autocast(problem.query.device):
            return scaled_dot_product_attention(problem.query, problem.key, problem.value, is_causal=causal, **options)

    def attend(query: Tensor, key: Tensor, value: Tensor, first_position: int) -> Tensor:
        visible = visible_keys(query.shape[2], key.shape[2], problem.window_size, first_position, query.device)
        sees_a_key = visible.any(dim=-1, keepdim=True)
        # torch's kernels disagree about rows that see no key: let these see all, and drop what they get.
        out = scaled_dot_product_attention(query, key, value, attn_mask=visible | ~sees_a_key, **options)
        return torch.where(sees_a_key, out, 0.0)

    # The kernel keeps its mask for the backward: small under a window, all of N x N where a side has no limit.
    return _tile_by_tile(problem, tile_size, attend, recompute=UNLIMITED in problem.window_size)


def _tile_by_tile(
    problem: AttentionProblem, tile_size: int | None, attend: Callable[..., Tensor], *, recompute: bool
) -> Tensor:
    """Join what ``attend`` makes of each tile; with ``recompute``, the backward calls it again."""
    outputs = []
    # The inputs have the dtype that the caller has settled on.
    with _without_autocast(problem.query.device):
        for tile in query_tiles(problem, tile_size):
            arguments = (tile.query, tile.key, tile.value, tile.first_position)
            again = recompute and torch.is_grad_enabled() and tile.query.shape[2] < problem.query.shape[2]
            outputs.append(checkpoint(attend, *arguments, use_reentrant=False) if again else attend(*arguments))
        return torch.cat(outputs, dim=2)


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    # The meta device has no autocast.
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
