# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""One attention computation, described once for every backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from numbers import Real
from typing import Any

import torch
from torch import Tensor

UNLIMITED = -1
"""Window size that sets no limit."""

_LONGEST = 2**31 - 1

WindowSize = int | Sequence[int] | None


@dataclass(frozen=True)
class AttentionProblem:
    """Inputs and options of one multi-head attention.

    Query row ``i`` sits at position ``p = i + N_k - N_q`` among the keys (bottom-right alignment, the rule of
    flash-attention) and sees key ``j`` if ``p - left <= j <= p + right``. Rows that see no key give zeros.

    Parameters
    ----------
    query : Tensor
        ``[B, H, N_q, D]``, floating point.
    key, value : Tensor
        ``[B, H, N_k, D]``, dtype and device of the query.
    window_size : tuple of int
        ``(left, right)``, both at least 0, or -1 for no limit. Causal attention is ``right = 0``.
    softmax_scale : float
        Factor on the scores.
    softcap : float
        Scores become ``softcap * tanh(scores / softcap)``; 0 switches it off.
    alibi_slopes : Tensor or None
        ``[H]`` or ``[B, H]``, fp32: adds ``-slope * |p - j|`` to the scores, after the softcap.
    dropout_p : float
        Probability with which an attention weight is dropped.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    window_size: tuple[int, int] = (UNLIMITED, UNLIMITED)
    softmax_scale: float = 1.0
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None
    dropout_p: float = 0.0

    @property
    def windowed(self) -> bool:
        """Whether either side of the window has a limit."""
        return self.window_size != (UNLIMITED, UNLIMITED)

    @property
    def alignment(self) -> int:
        """Position of query row 0 among the keys: ``N_k - N_q``."""
        return self.key.shape[2] - self.query.shape[2]


def normalise_window(window_size: WindowSize, *, causal: bool = False) -> tuple[int, int]:
    """Bring a window to ``(left, right)``.

    Parameters
    ----------
    window_size : int, pair of int or None
        One number for both sides, or one each; None and -1 set no limit, 0 is the query's own position.
    causal : bool
        Whether keys after the query's position are hidden.

    Raises
    ------
    ValueError
        If a size is below -1 or no integer.
    """
    sizes = window_size if isinstance(window_size, Sequence) else (window_size, window_size)
    sides = [UNLIMITED if size is None else size for size in sizes]
    valid = len(sides) == 2 and all(isinstance(side, Integral) and not isinstance(side, bool) for side in sides)
    if not valid or min(sides) < UNLIMITED:
        raise ValueError(
            f"window_size={window_size!r} is no attention window. Allowed: an integer >= 0, a pair (left, right) of "
            "them, and -1 or None for no limit. Set window_size to one of these."
        )
    # No sequence is longer, and kernels count in int32.
    left, right = (min(int(side), _LONGEST) for side in sides)
    return (left, 0) if causal else (left, right)


def make_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window_size: WindowSize = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float | None = 0.0,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
) -> AttentionProblem:
    """Check the inputs of an attention and describe it as an :class:`AttentionProblem`.

    Raises
    ------
    ValueError
        If shapes, dtypes, devices or options do not fit together.
    """
    _check_tensors(query, key, value)
    _check_options(query, softmax_scale, softcap, alibi_slopes, dropout_p)
    device_type = query.device.type
    # The meta device has no autocast, and torch raises if asked about it.
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        # q/k norms leave fp32 under autocast while value is already low precision; value's dtype is the layer's.
        query, key = query.to(value.dtype), key.to(value.dtype)
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"query, key and value differ in dtype: {query.dtype}, {key.dtype}, {value.dtype}. One dtype is needed; "
            "cast them, or run under torch.autocast."
        )
    return AttentionProblem(
        query,
        key,
        value,
        window_size=normalise_window(window_size, causal=causal),
        softmax_scale=1.0 / math.sqrt(query.shape[-1]) if softmax_scale is None else float(softmax_scale),
        softcap=softcap or 0.0,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
    )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not (query.dim() == key.dim() == value.dim() == 4):
        raise ValueError(f"attention takes tensors [B, H, N, D], got {shapes}. Reshape them to four dimensions.")
    same = query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not (same and key.shape == value.shape and query.shape[3] == key.shape[3]):
        raise ValueError(
            f"shapes do not fit together: {shapes}. B, H and D must agree, and N between key and value. "
            "Repeat or reshape the tensors first."
        )
    if 0 in (query.shape[1], query.shape[3]):
        raise ValueError(f"there is nothing to attend with: {shapes}. Allowed: at least one head, and D of at least 1.")
    if not query.dtype.is_floating_point:
        raise ValueError(f"attention takes floating-point tensors, got {query.dtype}. Cast to fp16, bf16 or fp32.")
    if not (query.device == key.device == value.device):
        raise ValueError(
            f"tensors are on different devices: query {query.device}, key {key.device}, value {value.device}. "
            "Move them to one device."
        )


def _check_options(query: Tensor, softmax_scale: Any, softcap: Any, alibi_slopes: Any, dropout_p: Any) -> None:
    if softmax_scale is not None and not _is_finite(softmax_scale):
        raise ValueError(
            f"softmax_scale={softmax_scale!r} is no factor. Allowed: a finite number, or None for 1/sqrt(D)."
        )
    if softcap is not None and not (_is_finite(softcap) and softcap >= 0.0):
        raise ValueError(f"softcap={softcap!r} is no limit of scores. Allowed: 0 or None (off), or a positive number.")
    if not (_is_finite(dropout_p) and 0.0 <= dropout_p < 1.0):
        raise ValueError(f"dropout_p={dropout_p!r} is no probability. Allowed: 0 <= dropout_p < 1. Set 0 for none.")
    allowed = (query.shape[1:2], query.shape[:2])
    if alibi_slopes is not None and (not isinstance(alibi_slopes, Tensor) or alibi_slopes.shape not in allowed):
        got = tuple(alibi_slopes.shape) if isinstance(alibi_slopes, Tensor) else repr(alibi_slopes)
        raise ValueError(
            f"alibi_slopes has shape {got}. Allowed: a tensor [H] = {tuple(allowed[0])} or [B, H] = "
            f"{tuple(allowed[1])}. Give one slope a head."
        )


def _is_finite(number: Any) -> bool:
    return isinstance(number, Real) and math.isfinite(number)
