# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The oracle: attention written out in plain torch, in float64 if its inputs are."""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import UNLIMITED
from .problem import AttentionProblem


def reference_attention(problem: AttentionProblem, dropout_mask: Tensor | None = None) -> Tensor:
    """Compute an attention densely, with N_q x N_k memory, in the dtype of its inputs.

    Parameters
    ----------
    problem : AttentionProblem
        The attention. Its ``dropout_p`` needs the mask that says which weights are kept.
    dropout_mask : Tensor or None
        Boolean ``[B, H, N_q, N_k]``, true where a weight is kept.

    Returns
    -------
    Tensor
        ``[B, H, N_q, D]``, differentiable (twice).

    Raises
    ------
    ValueError
        If dropout is asked for without its mask.
    """
    if problem.dropout_p > 0.0 and dropout_mask is None:
        raise ValueError(f"dropout_p={problem.dropout_p} needs a dropout_mask [B, H, N_q, N_k]: the oracle draws none.")
    weights = attention_weights(problem.query, problem.key, problem, first_position=problem.alignment)
    if dropout_mask is not None:
        weights = torch.where(dropout_mask, weights, 0.0) / (1.0 - problem.dropout_p)
    return weights @ problem.value


def attention_weights(query: Tensor, key: Tensor, problem: AttentionProblem, *, first_position: int) -> Tensor:
    """Compute the softmax of the scores.

    Parameters
    ----------
    query, key : Tensor
        ``[B, H, N_q, D]`` and ``[B, H, N_k, D]``: all, or a stretch of each.
    problem : AttentionProblem
        Where scale, softcap, slopes and window come from.
    first_position : int
        Position of the first query row, counted from the first key row.

    Returns
    -------
    Tensor
        ``[B, H, N_q, N_k]``, zero where a key is hidden, also in rows that see none.
    """
    scores = (query @ key.transpose(-1, -2)) * problem.softmax_scale
    if problem.softcap > 0.0:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    num_queries, num_keys = scores.shape[-2:]
    if problem.alibi_slopes is not None:
        distance = _offsets(num_queries, num_keys, first_position, scores.device).abs()
        slopes = problem.alibi_slopes.to(scores).reshape(-1, scores.shape[1], 1, 1)
        scores = scores - slopes * distance
    if not problem.windowed:
        return torch.softmax(scores, dim=-1)
    visible = visible_keys(num_queries, num_keys, problem.window_size, first_position, scores.device)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    # A row without any key is NaN after softmax; it contributes nothing, in value and in gradient.
    return torch.where(visible, weights, 0.0)


def visible_keys(
    num_queries: int,
    num_keys: int,
    window_size: tuple[int, int],
    first_position: int,
    device: torch.device | None = None,
) -> Tensor:
    """Say which key each query sees, by the rule of :class:`AttentionProblem`.

    Returns
    -------
    Tensor
        Boolean ``[N_q, N_k]``.
    """
    left, right = window_size
    offset = _offsets(num_queries, num_keys, first_position, device)
    visible = torch.ones_like(offset, dtype=torch.bool)
    if left != UNLIMITED:
        visible &= offset >= -left
    if right != UNLIMITED:
        visible &= offset <= right
    return visible


def _offsets(num_queries: int, num_keys: int, first_position: int, device: torch.device | None) -> Tensor:
    """Distance from each query's position to each key, negative to the left: ``[N_q, N_k]``."""
    position = torch.arange(num_queries, device=device)[:, None] + first_position
    return torch.arange(num_keys, device=device)[None, :] - position
