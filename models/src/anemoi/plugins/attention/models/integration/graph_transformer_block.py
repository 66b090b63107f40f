# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``anemoi.models.layers.block``: the graph-transformer blocks of encoder, processor and decoder."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from ..attention_backends import graph_backends
from ..attention_backends import require_available
from ..environment import GRAPH_TRANSFORMER
from .patches import PATCHES
from .requested import environment_or_own

LOGGER = logging.getLogger(__name__)


def patch(module: ModuleType) -> None:
    """Let the host's blocks follow the environment when a backend is set, not when the host was imported."""
    block_class = module.GraphTransformerBaseBlock
    PATCHES.set(module, "ATTENTION_BACKEND", "")
    PATCHES.set(block_class, "set_attention_function", set_own_backend)
    PATCHES.set(block_class, "apply_gt", _choosing_first(block_class.apply_gt))


def set_backend(block: Any, name: str) -> None:
    """Give a graph-transformer block a backend.

    Parameters
    ----------
    block : GraphTransformerBaseBlock
        The host's block; its weights are not touched.
    name : str
        Canonical name of a graph-transformer backend.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run on this machine.
    """
    from anemoi.models.layers.block import GraphTransformerBaseBlock
    from anemoi.models.layers.conv import GraphTransformerConv

    require_available(name, GRAPH_TRANSFORMER)
    block.graph_attention_backend = name
    if name == "pyg":
        block.conv = GraphTransformerConv(out_channels=block.out_channels_conv)
    else:
        # The host assigns a function here, which torch refuses over a registered submodule.
        block._modules.pop("conv", None)
        PATCHES.original(GraphTransformerBaseBlock, "set_attention_function")(block)
    # The host's mark for "the environment has been heeded".
    block._attention_backend_applied = True


def current_backend(block: Any) -> str:
    """Return the name of the backend that a block was built or saved with."""
    return block.graph_attention_backend


def set_own_backend(self: Any) -> None:
    """Replace ``GraphTransformerBaseBlock.set_attention_function``.

    Like the host's, it takes pyg where the kernel that the model was configured with can't run; a backend that the
    environment asks for runs or raises.
    """
    from anemoi.models.layers.block import GraphTransformerBaseBlock

    stock = PATCHES.original(GraphTransformerBaseBlock, "set_attention_function")
    name = environment_or_own(self, self.graph_attention_backend, GRAPH_TRANSFORMER, stock)
    if name is None:
        return
    available, reason = graph_backends()[name].available()
    if not available and name == self.graph_attention_backend:
        _say_once(name, reason)
        name = "pyg"
    set_backend(self, name)


@functools.cache
def _say_once(name: str, reason: str) -> None:
    LOGGER.warning("The model's graph attention backend '%s' cannot run here (%s): taking 'pyg'.", name, reason)


def _choosing_first(apply_gt: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap ``GraphTransformerBaseBlock.apply_gt``: blocks from older checkpoints may have chosen nothing yet."""

    @functools.wraps(apply_gt)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not getattr(self, "_attention_backend_applied", False):
            self.set_attention_function()
        return apply_gt(self, *args, **kwargs)

    return wrapper
