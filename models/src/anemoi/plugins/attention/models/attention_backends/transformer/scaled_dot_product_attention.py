# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""torch's scaled_dot_product_attention, with a window in memory O(N*window)."""

import torch
from torch import Tensor

from ...banded import tiled_scaled_dot_product_attention
from ...problem import AttentionProblem
from ..base import TransformerBackend
from . import transformer_backend_registry


@transformer_backend_registry.register("scaled_dot_product_attention")
class ScaledDotProductAttentionBackend(TransformerBackend):
    """Whatever kernel torch chooses; windows are cut into tiles, so no N x N mask exists."""

    name = "scaled_dot_product_attention"
    aliases = ("sdpa",)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    supports_dropout = True

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return true: torch has it for every device."""
        return True, "part of torch"

    def run(self, problem: AttentionProblem) -> Tensor:
        """Compute ``[B, H, N_q, D]`` in the dtype of the query."""
        return tiled_scaled_dot_product_attention(problem)
