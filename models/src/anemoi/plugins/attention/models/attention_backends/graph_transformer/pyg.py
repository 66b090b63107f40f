# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""PyTorch Geometric's message passing, as anemoi-models ships it."""

from ..base import Backend
from . import graph_transformer_backend_registry


@graph_transformer_backend_registry.register("pyg")
class PygBackend(Backend):
    """The host's ``GraphTransformerConv``; runs everywhere."""

    name = "pyg"

    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Return true: torch-geometric is a requirement of anemoi-models."""
        return True, "runs on every device"
