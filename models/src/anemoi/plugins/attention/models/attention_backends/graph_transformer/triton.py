# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The Triton kernel of anemoi-models itself."""

import importlib.util

import torch

from ..base import Backend
from . import graph_transformer_backend_registry


@graph_transformer_backend_registry.register("triton")
class HostTritonBackend(Backend):
    """The host's ``graph_transformer_attention_conv``."""

    name = "triton"

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return whether Triton is installed and there is a GPU for it."""
        if importlib.util.find_spec("triton") is None:
            return False, "triton is not installed (pip install triton)"
        if device_type not in (None, "cuda"):
            return False, f"device={device_type} (needs cuda)"
        if not torch.cuda.is_available():
            return False, "no CUDA device is visible (needs a GPU)"
        return True, "Triton and a GPU are here"
