# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Triton attention: the fused kernel on a GPU, the same computation in banded torch elsewhere."""

import logging
from functools import cache

import torch
from torch import Tensor

from ...banded import banded_attention
from ...problem import AttentionProblem
from ...triton.requirement import kernels_available
from ..base import TransformerBackend
from . import transformer_backend_registry

LOGGER = logging.getLogger(__name__)


@cache
def _say_once_that_torch_serves(device_type: str) -> None:
    LOGGER.warning(
        "triton_attention on device '%s': no Triton kernel there, computing the same attention with the banded torch "
        "path (exact, without an N x N matrix, slower than a GPU).",
        device_type,
    )


@transformer_backend_registry.register("triton_attention")
class TritonAttentionBackend(TransformerBackend):
    """One computation, two implementations: a Triton kernel on CUDA devices, banded torch on all others."""

    name = "triton_attention"
    # The host's graph layers call their kernel "triton"; users write the same here.
    aliases = ("triton",)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    supports_softcap = True
    supports_alibi = True
    supports_dropout = True

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return whether a GPU has Triton to compile for it; devices other than GPUs need nothing."""
        return kernels_available(device_type, "banded torch path")

    def not_supported_reasons(self, problem: AttentionProblem) -> list[str]:
        """List why this backend cannot compute the problem; empty if it can."""
        reasons = super().not_supported_reasons(problem)
        if problem.query.is_cuda and not reasons:
            from ...triton.attention import unsupported_reasons

            reasons += unsupported_reasons(problem.query, problem.key, problem.value)
        return reasons

    def run(self, problem: AttentionProblem) -> Tensor:
        """Compute ``[B, H, N_q, D]`` in the dtype of the query."""
        if not problem.query.is_cuda:
            # A message can't be compiled.
            if not torch.compiler.is_compiling():
                _say_once_that_torch_serves(problem.query.device.type)
            return banded_attention(problem)
        # Triton compiles for GPUs alone and takes a second to import: only where it is used.
        from ...triton.attention import fused_attention

        return fused_attention(
            problem.query,
            problem.key,
            problem.value,
            window_size=problem.window_size,
            softmax_scale=problem.softmax_scale,
            softcap=problem.softcap,
            alibi_slopes=problem.alibi_slopes,
            dropout_p=problem.dropout_p,
        )
