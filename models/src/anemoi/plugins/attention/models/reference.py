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


def visible_keys(num_queries: int, num_keys: int, window_size: tuple[int, int], device: torch.device) -> Tensor:
    """Which key each query sees.

    Returns
    -------
    Tensor
        Boolean ``[N_q, N_k]``, by the rule of :class:`AttentionProblem`.
    """
    left, right = window_size
    position = torch.arange(num_queries, device=device)[:, None] + (num_keys - num_queries)
    offset = torch.arange(num_keys, device=device)[None, :] - position
    visible = torch.ones_like(offset, dtype=torch.bool)
    if left != UNLIMITED:
        visible &= offset >= -left
    if right != UNLIMITED:
        visible &= offset <= right
    return visible


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
    """
    if problem.dropout_p > 0.0 and dropout_mask is None:
        raise ValueError(f"dropout_p={problem.dropout_p} needs a dropout_mask [B, H, N_q, N_k]: the oracle draws none.")
    query, key, value = problem.query, problem.key, problem.value
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * problem.softmax_scale
    if problem.softcap > 0.0:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    num_queries, num_keys = query.shape[2], key.shape[2]
    if problem.alibi_slopes is not None:
        position = torch.arange(num_queries, device=query.device)[:, None] + problem.alignment
        distance = (torch.arange(num_keys, device=query.device)[None, :] - position).abs()
        slopes = problem.alibi_slopes.to(scores.dtype).reshape(-1, query.shape[1], 1, 1)
        scores = scores - slopes * distance
    visible = visible_keys(num_queries, num_keys, problem.window_size, query.device)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    # A row without any key is NaN after softmax; it contributes nothing, in value and in gradient.
    weights = torch.where(visible, weights, 0.0)
    if dropout_mask is not None:
        weights = torch.where(dropout_mask, weights, 0.0) / (1.0 - problem.dropout_p)
    return torch.einsum("bhij,bhjd->bhid", weights, value)
