# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Triton graph attention: the kernels on a GPU, the same computation in torch elsewhere."""

import logging
from functools import cache

import torch
from torch import Tensor

from ...graph.functional import TORCH
from ...graph.functional import TRITON
from ...graph.functional import graph_attention
from ...graph.functional import graph_attention_factorised
from ...graph.layout import GraphLayout
from ...triton.requirement import kernels_available
from ..base import Backend
from . import graph_transformer_backend_registry

LOGGER = logging.getLogger(__name__)


@cache
def _say_once_that_torch_serves(device_type: str) -> None:
    LOGGER.warning(
        "triton_attention of the graph transformer on device '%s': no Triton kernel there, computing the same "
        "attention with the torch path (exact, slower than a GPU).",
        device_type,
    )


@graph_transformer_backend_registry.register("triton_attention")
class TritonGraphAttentionBackend(Backend):
    """One computation, two implementations: Triton kernels on CUDA devices, torch on all others."""

    name = "triton_attention"

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return whether a GPU has Triton to compile for it; devices other than GPUs need nothing."""
        return kernels_available(device_type, "torch path")

    def run(self, query: Tensor, key: Tensor, value: Tensor, edges: Tensor, layout: GraphLayout) -> Tensor:
        """Compute ``[N_dst, H, C]`` from edges ``[M, H, C]``; see :func:`graph_attention`."""
        return graph_attention(query, key, value, edges, layout, backend=_implementation(value))

    def run_factorised(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layout: GraphLayout,
    ) -> Tensor:
        """Compute ``[N_dst, H, C]`` from attributes ``[M, A]``; see :func:`graph_attention_factorised`."""
        return graph_attention_factorised(
            query, key, value, edge_attr, weight, bias, layout, backend=_implementation(value)
        )


def _implementation(value: Tensor) -> str:
    if value.is_cuda:
        return TRITON
    # A message can't be compiled.
    if not torch.compiler.is_compiling():
        _say_once_that_torch_serves(value.device.type)
    return TORCH
