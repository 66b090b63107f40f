# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Attention layers that were saved with an older anemoi-models than the one that opens them.

Attributes that came later are added with the value that means what the older release did; a joint projection of query,
key and value is used as three. Parameters and ``state_dict`` stay as they are.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch import nn

from .bare_attention import is_bare

LOGGER = logging.getLogger(__name__)

# What later releases read, and what its absence means.
_LATER_ATTRIBUTES = {
    "dropout_p": 0.0,
    "softcap": None,
    "alibi_slopes": None,
    "use_alibi_slopes": False,
    "qk_norm": False,
    "use_rotary_embeddings": False,
}
_SDPA = "scaled_dot_product_attention"


def complete(layer: Any) -> None:
    """Add the attributes that a layer of an older release lacks."""
    for name, value in _LATER_ATTRIBUTES.items():
        vars(layer).setdefault(name, value)


def warn_of_options_ignored_before(layer: Any) -> None:
    """Say, once each, what the SDPA attention that a layer was saved with left out and is honoured from now on.

    Before 0.4 that was the window; from 0.4 to 0.12, softcap and ALiBi.
    """
    held = getattr(layer, "attention", None)
    own = getattr(layer, "attention_implementation", None)
    if is_bare(held) and own is None:
        sides = layer.window_size if isinstance(layer.window_size, (tuple, list)) else (layer.window_size,)
        if any(side not in (None, -1) for side in sides) and _is_torch_function(held):
            _say_once_that_it_was_ignored("window_size", str(layer.window_size), "0.4")
    elif type(held).__name__ == "SDPAAttentionWrapper" and own == _SDPA and hasattr(held, "mask"):
        # `mask` became `attn_mask` in the release that refuses them.
        if getattr(layer, "softcap", None):
            _say_once_that_it_was_ignored("softcap", str(layer.softcap), "0.13")
        if getattr(layer, "alibi_slopes", None) is not None:
            _say_once_that_it_was_ignored("alibi_slopes", "set", "0.13")


def _is_torch_function(function: Any) -> bool:
    return getattr(function, "__name__", "") == _SDPA


@functools.cache
def _say_once_that_it_was_ignored(option: str, value: str, before: str) -> None:
    LOGGER.warning(
        "The model has %s=%s, which %s of anemoi-models before %s ignored: results of that attention were without it. "
        "It is honoured from now on, so they change. To keep the former results, set %s of the attention layers to "
        "None: ignore_options(model, '%s') in anemoi.plugins.attention.models.integration.",
        option,
        value,
        _SDPA,
        before,
        option,
        option,
    )


def split_projection(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a ``forward`` that projects query, key and value one by one, for layers with one projection for all."""

    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if "lin_qkv" not in self._modules:
            return forward(self, *args, **kwargs)
        with _in_three(self):
            return forward(self, *args, **kwargs)

    return wrapper


@contextmanager
def _in_three(layer: Any) -> Iterator[None]:
    """Let a layer have ``lin_q``, ``lin_k`` and ``lin_v`` meanwhile; they are no modules, and hold nothing."""
    names = ("lin_q", "lin_k", "lin_v")
    for index, name in enumerate(names):
        vars(layer)[name] = functools.partial(_project, layer.lin_qkv, index)
    try:
        yield
    finally:
        for name in names:
            vars(layer).pop(name, None)


def _project(joint: nn.Linear, index: int, x: Tensor) -> Tensor:
    """Return the query, key or value (0, 1 or 2) of a projection ``[C, 3C]``."""
    bias = None if joint.bias is None else joint.bias.chunk(3)[index]
    return nn.functional.linear(x, joint.weight.chunk(3)[index], bias)


def ignore_options(model: nn.Module, *options: str) -> int:
    """Switch options of all transformer attention layers off, to keep results that were computed without them.

    Parameters
    ----------
    model : nn.Module
        A model of anemoi-models; its layers are changed in place, their weights are not.
    *options : str
        Of ``"window_size"``, ``"softcap"`` and ``"alibi_slopes"``.

    Returns
    -------
    int
        How many layers had one of them.

    Raises
    ------
    ValueError
        If a name is none of these.
    """
    allowed = ("window_size", "softcap", "alibi_slopes")
    for option in options:
        if option not in allowed:
            raise ValueError(
                f"ignore_options() knows no option {option!r}. Allowed: {', '.join(allowed)}. Correct the name."
            )
    from anemoi.models.layers.attention import MultiHeadSelfAttention

    changed = 0
    for layer in model.modules():
        if isinstance(layer, MultiHeadSelfAttention):
            found = [option for option in options if getattr(layer, option, None) is not None]
            for option in found:
                # The oldest layers have a pair, and flash-attention knows no None in it.
                setattr(layer, option, (-1, -1) if isinstance(getattr(layer, option), tuple) else None)
            changed += bool(found)
    return changed
