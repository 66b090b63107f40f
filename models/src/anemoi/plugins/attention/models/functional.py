# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The public attention function."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from .attention_backends import TransformerBackend
from .attention_backends import canonical_name
from .attention_backends import names
from .attention_backends import transformer_backends
from .environment import TRANSFORMER
from .errors import UnknownBackend
from .errors import UnsupportedProblem
from .problem import AttentionProblem
from .problem import WindowSize
from .problem import make_problem

LOGGER = logging.getLogger(__name__)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window_size: WindowSize = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Compute multi-head attention, dense or in a sliding window.

    Query row ``i`` sits at position ``p = i + N_k - N_q`` among the keys and sees key ``j`` if
    ``p - left <= j <= p + right``; a row that sees no key gives zeros. The rule is that of flash-attention (Dao 2023,
    https://arxiv.org/abs/2307.08691) and the same on all backends.

    Parameters
    ----------
    query : Tensor
        ``[B, H, N_q, D]`` in fp16, bf16 or fp32; any strides.
    key, value : Tensor
        ``[B, H, N_k, D]``.
    window_size : int, pair of int or None
        Keys on each side, or ``(left, right)``; None or -1 is no limit, 0 the own position alone.
    causal : bool
        Hide the keys after the query's position.
    softmax_scale : float or None
        Factor on the scores, ``1/sqrt(D)`` by default.
    softcap : float
        If above 0, scores become ``softcap * tanh(scores / softcap)``.
    alibi_slopes : Tensor or None
        ``[H]`` or ``[B, H]``: adds ``-slope * |p - j|`` to the scores.
    dropout_p : float
        Probability with which an attention weight is dropped. Set it to 0 outside training.
    backend : str
        ``triton_attention``, ``flash_attention``, ``scaled_dot_product_attention`` or ``auto``. A name runs or raises;
        only ``auto`` takes the first that can.

    Returns
    -------
    Tensor
        ``[B, H, N_q, D]``, dtype of the inputs. Under autocast with inputs of several dtypes that of ``value``.

    Raises
    ------
    ValueError
        If shapes, dtypes, devices or options do not fit together.
    UnknownBackend
        If ``backend`` is no name of one.
    UnsupportedProblem
        If the backend cannot compute this attention here; the message says why and what can.
    """
    problem = make_problem(
        query,
        key,
        value,
        window_size=window_size,
        causal=causal,
        softmax_scale=softmax_scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
    )
    selected = _select(problem, backend)
    if 0 in (problem.query.shape[0], problem.query.shape[2], problem.key.shape[2]):
        # No row, or no row that sees a key: nothing to compute, and kernels need not know.
        return problem.query * 0.0
    return selected.run(problem)


def _select(problem: AttentionProblem, name: str) -> TransformerBackend:
    candidates = transformer_backends()
    if name != "auto":
        if name not in names(TRANSFORMER):
            raise UnknownBackend("backend", name, [*names(TRANSFORMER), "auto"])
        name = canonical_name(name, TRANSFORMER, "backend")
        reasons = candidates[name].not_supported_reasons(problem)
        if not reasons:
            return candidates[name]
        raise UnsupportedProblem(_refusal(problem, f"Backend '{name}' cannot run this attention", reasons))
    refusals: list[str] = []
    for backend in candidates.values():
        reasons = backend.not_supported_reasons(problem)
        if not reasons:
            # A message can't be compiled; whoever compiles has seen it in the runs before.
            if not torch.compiler.is_compiling():
                _say_once(backend.name, "; ".join(refusals) or "the first choice")
            return backend
        refusals.append(f"{backend.name}: {', '.join(reasons)}")
    raise UnsupportedProblem(_refusal(problem, "No backend can run this attention", refusals))


def _refusal(problem: AttentionProblem, what: str, reasons: list[str]) -> str:
    usable = [name for name, backend in transformer_backends().items() if not backend.not_supported_reasons(problem)]
    fix = (
        "Choose one of these (backend, or attention_implementation in a configuration)"
        if usable
        else "Change the inputs"
    )
    return f"{what}: {'; '.join(reasons)}. Usable here: {', '.join(usable) or 'none'}. {fix}."


@cache
def _say_once(name: str, why: str) -> None:
    LOGGER.info("attention(backend='auto') takes %s (%s).", name, why)
