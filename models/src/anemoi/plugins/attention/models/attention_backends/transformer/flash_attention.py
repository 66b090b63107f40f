# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Dao-AILab's flash-attention, whichever of its generations is installed.

The three generations are separate packages with one function name and different options:
``flash_attn.cute`` (v4), ``flash_attn_interface`` (v3) and ``flash_attn`` (v2), tried in this order.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...problem import UNLIMITED
from ...problem import AttentionProblem
from ..base import TransformerBackend
from . import transformer_backend_registry


@dataclass(frozen=True)
class _Generation:
    version: int
    module: str
    options: frozenset[str]
    """The options beyond window and scale that its function takes."""


_GENERATIONS = (
    _Generation(4, "flash_attn.cute", frozenset()),
    _Generation(3, "flash_attn_interface", frozenset({"softcap"})),
    _Generation(2, "flash_attn", frozenset({"softcap", "alibi_slopes", "dropout_p"})),
)


@cache
def _installed() -> tuple[_Generation | None, Callable[..., Any] | None, str]:
    """Return the generation found, its function, and why the others were not."""
    failures = []
    for generation in _GENERATIONS:
        try:
            function = importlib.import_module(generation.module).flash_attn_func
        except (ImportError, AttributeError, OSError) as error:
            # OSError: a wheel built for another CUDA or torch fails while its library is loaded.
            failures.append(f"v{generation.version}: {error}")
        else:
            return generation, function, ""
    return None, None, "; ".join(failures)


@transformer_backend_registry.register("flash_attention")
class FlashAttentionBackend(TransformerBackend):
    """The installed flash-attention; options that its generation lacks are refused."""

    name = "flash_attention"
    aliases = ("flash",)
    dtypes = (torch.float16, torch.bfloat16)
    max_head_dim = 256
    # These depend on the generation: not_supported_reasons says what the installed one lacks.
    supports_softcap = True
    supports_alibi = True
    supports_dropout = True

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return whether a generation is installed and there is a GPU for it."""
        generation, _, failures = _installed()
        if generation is None:
            return False, f"flash-attention is not installed ({failures})"
        if device_type not in (None, "cuda"):
            return False, f"device={device_type} (needs cuda)"
        if not torch.cuda.is_available():
            return False, "no CUDA device is visible (needs a GPU)"
        return True, f"flash-attention v{generation.version}"

    def not_supported_reasons(self, problem: AttentionProblem) -> list[str]:
        """List why this backend cannot compute the problem; empty if it can."""
        generation, _, _ = _installed()
        offered = generation.options if generation else frozenset()
        asked = {
            "softcap": problem.softcap > 0.0,
            "alibi_slopes": problem.alibi_slopes is not None,
            "dropout_p": problem.dropout_p > 0.0,
        }
        version = f"flash-attention v{generation.version}" if generation else "flash-attention"
        reasons = super().not_supported_reasons(problem)
        return reasons + [
            f"{option} (not in {version})" for option, on in asked.items() if on and option not in offered
        ]

    def run(self, problem: AttentionProblem) -> Tensor:
        """Compute ``[B, H, N_q, D]`` in the dtype of the query."""
        generation, function, _ = _installed()
        if generation is None or function is None:
            raise RuntimeError("flash_attention was run although it is not available; check available() first.")
        no_limit = None if generation.version == 4 else UNLIMITED
        options: dict[str, Any] = {
            "window_size": tuple(no_limit if side == UNLIMITED else side for side in problem.window_size),
            "softmax_scale": problem.softmax_scale,
        }
        if problem.softcap > 0.0:
            options["softcap"] = problem.softcap
        if problem.alibi_slopes is not None:
            options["alibi_slopes"] = problem.alibi_slopes.to(problem.query.device, torch.float32)
        if problem.dropout_p > 0.0:
            options["dropout_p"] = problem.dropout_p
        # flash-attention's layout is [B, N, H, D].
        out = function(*(tensor.transpose(1, 2) for tensor in (problem.query, problem.key, problem.value)), **options)
        # v4 and early v3 return (out, lse).
        out = out[0] if isinstance(out, tuple) else out
        return out.transpose(1, 2)
