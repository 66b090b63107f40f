# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""torch's scaled_dot_product_attention, with a window in memory O(N*window)."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...banded import query_tiles
from ...problem import AttentionProblem
from ...reference import visible_keys
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
        options = {"dropout_p": problem.dropout_p, "scale": problem.softmax_scale}
        if not problem.windowed:
            return scaled_dot_product_attention(problem.query, problem.key, problem.value, **options)
        outputs = []
        for tile in query_tiles(problem):
            visible = visible_keys(
                tile.query.shape[2], tile.key.shape[2], problem.window_size, tile.first_position, tile.query.device
            )
            sees_a_key = visible.any(dim=-1, keepdim=True)
            # torch's kernels disagree about rows that see no key: let these see all, and drop what they get.
            out = scaled_dot_product_attention(
                tile.query, tile.key, tile.value, attn_mask=visible | ~sees_a_key, **options
            )
            outputs.append(torch.where(sees_a_key, out, 0.0))
        return torch.cat(outputs, dim=2)
