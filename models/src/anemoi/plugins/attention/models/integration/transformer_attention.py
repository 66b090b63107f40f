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
from .bare_attention import BareAttention
from .bare_attention import backend_of_function
from .older_layers import complete
from .older_layers import split_projection
from .older_layers import warn_of_options_ignored_before
from .patches import PATCHES
from .requested import environment_or_own

LOGGER = logging.getLogger(__name__)


def patch(module: ModuleType) -> None:
    """Let the host's attention layers look their backend up here.

    Cross-attention inherits these methods, so that it follows the environment, too. Releases of the host differ in
    what they have; what is not there is not replaced.
    """
    layer_class = module.MultiHeadSelfAttention
    # The host reads the variable at import and applies it in the forward of self-attention alone; here it counts
    # whenever a backend is set, so the host's own reading must not get in the way.
    if hasattr(module, "ATTENTION_BACKEND"):
        PATCHES.set(module, "ATTENTION_BACKEND", "")
    if hasattr(layer_class, "set_attention_function"):
        PATCHES.set(layer_class, "set_attention_function", set_own_backend)
    if hasattr(layer_class, "attention_computation"):
        PATCHES.set(layer_class, "attention_computation", _turning_back(layer_class.attention_computation))
        PATCHES.set(layer_class, "forward", split_projection(layer_class.forward))
    else:
        # Before cross-attention came, in 0.7.
        PATCHES.set(layer_class, "forward", _turning_back(layer_class.forward))


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
    warn_of_options_ignored_before(layer)
    complete(layer)
    attention: Any = BareAttention(name, layer.window_size)
    if _has_wrappers():
        attention = AttentionModule(name, rotary=rotates(layer))
    layer.attention_implementation = name
    layer.attention = attention


def _has_wrappers() -> bool:
    """Whether this release calls its attention as a module with a signature of its own, as all do from 0.4."""
    from anemoi.models.layers import attention as host

    return hasattr(host, "SDPAAttentionWrapper")


def rotates(layer: Any) -> bool:
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
    name = getattr(layer, "attention_implementation", None)
    return backend_of_function(layer.attention) if name is None else name


def set_own_backend(self: Any) -> None:
    """Replace ``MultiHeadSelfAttention.set_attention_function``; for a host that has none, it is what we call."""
    from anemoi.models.layers.attention import MultiHeadSelfAttention

    stock: Callable[[Any], None] = _refuse_name
    if hasattr(MultiHeadSelfAttention, "set_attention_function"):
        stock = PATCHES.original(MultiHeadSelfAttention, "set_attention_function")
    name = environment_or_own(self, current_backend(self), TRANSFORMER, stock)
    if name is not None:
        set_backend(self, name)


def _refuse_name(layer: Any) -> None:
    """Stand in for the method of a host that has none: it knows no further names."""
    raise KeyError(current_backend(layer))


def _turning_back(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the method of ``MultiHeadSelfAttention`` that calls the attention.

    A layer that comes from a checkpoint holds what the host saves, whatever it was trained with: it gets its backend
    here unless it was given one when the checkpoint was loaded.
    """

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        held = getattr(self, "attention", None)
        if isinstance(held, BareAttention):
            # Somebody may have changed it since.
            held.window_size = self.window_size
        elif not isinstance(held, AttentionModule) and current_backend(self) in names(TRANSFORMER):
            set_own_backend(self)
        return method(self, *args, **kwargs)

    return wrapper
