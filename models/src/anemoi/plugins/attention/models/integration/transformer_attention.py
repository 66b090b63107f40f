# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``anemoi.models.layers.attention``: self- and cross-attention of the transformer layers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from ..attention_backends import names
from ..attention_backends import require_available
from ..environment import TRANSFORMER
from .attention_module import AttentionModule
from .patches import PATCHES
from .requested import environment_or_own

LOGGER = logging.getLogger(__name__)


def patch(module: ModuleType) -> None:
    """Let the host's attention layers look their backend up here.

    Cross-attention inherits both methods, so that it follows the environment, too.
    """
    layer_class = module.MultiHeadSelfAttention
    # The host reads the variable at import and applies it in the forward of self-attention alone; here it counts
    # whenever a backend is set, so the host's own reading must not get in the way.
    PATCHES.set(module, "ATTENTION_BACKEND", "")
    PATCHES.set(layer_class, "set_attention_function", set_own_backend)
    PATCHES.set(layer_class, "attention_computation", _turning_back(layer_class.attention_computation))


def set_backend(layer: Any, name: str) -> None:
    """Give a self- or cross-attention layer a backend.

    Parameters
    ----------
    layer : MultiHeadSelfAttention
        The host's layer; its weights are not touched.
    name : str
        Canonical name of a transformer backend.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run on this machine.
    """
    require_available(name, TRANSFORMER)
    layer.attention_implementation = name
    layer.attention = AttentionModule(name, rotary=_rotates(layer))


def _rotates(layer: Any) -> bool:
    """Whether the layer rotates queries and keys; it may name rotary embeddings and have been trained without."""
    if not getattr(layer, "use_rotary_embeddings", False):
        return False
    attention = getattr(layer, "attention", None)
    if isinstance(attention, AttentionModule):
        return attention.rotary
    if type(attention).__name__ == "SDPAAttentionWrapper":
        _say_once_that_nothing_was_rotated()
        return False
    return True


@functools.cache
def _say_once_that_nothing_was_rotated() -> None:
    LOGGER.warning(
        "The model says use_rotary_embeddings=True, but was saved with the stock scaled_dot_product_attention, which "
        "leaves them out: it is run as it was trained, without."
    )


def current_backend(layer: Any) -> str:
    """Return the name of the backend that a layer was built or saved with."""
    return layer.attention_implementation


def set_own_backend(self: Any) -> None:
    """Replace ``MultiHeadSelfAttention.set_attention_function``."""
    from anemoi.models.layers.attention import MultiHeadSelfAttention

    stock = PATCHES.original(MultiHeadSelfAttention, "set_attention_function")
    name = environment_or_own(self, self.attention_implementation, TRANSFORMER, stock)
    if name is not None:
        set_backend(self, name)


def _turning_back(attention_computation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap ``MultiHeadSelfAttention.attention_computation``.

    A layer that comes from a checkpoint holds a stock wrapper, whatever it was trained with: it gets its backend
    here unless it was given one when the checkpoint was loaded.
    """

    @functools.wraps(attention_computation)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        ours = isinstance(getattr(self, "attention", None), AttentionModule)
        if not ours and self.attention_implementation in names(TRANSFORMER):
            self.set_attention_function()
        return attention_computation(self, *args, **kwargs)

    return wrapper
