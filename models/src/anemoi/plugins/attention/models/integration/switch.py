# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Switching the plugin on and off in a process."""

from __future__ import annotations

import sys
from types import ModuleType

import wrapt

from . import graph_layouts
from . import graph_transformer_block
from . import transformer_attention
from .patches import PATCHES

# The host's modules, each with the function that patches it.
_ADAPTERS = {
    "anemoi.models.layers.attention": transformer_attention.patch,
    "anemoi.models.layers.block": graph_transformer_block.patch,
    "anemoi.models.layers.graph_provider": graph_layouts.patch_provider,
    "anemoi.models.distributed.khop_edges": graph_layouts.patch_partition,
    "anemoi.models.layers.mapper": graph_layouts.patch_mapper,
}

_enabled = False
_hooked = False


def enable() -> None:
    """Make the backends of this package known to the released anemoi-models.

    Afterwards ``attention_implementation: triton_attention`` works in every transformer layer (self- and
    cross-attention), and names of the host keep their meaning. Nothing of the host is imported: modules already
    imported are patched now, others when they are. Calling it again changes nothing; :func:`disable` undoes it.
    """
    global _enabled, _hooked
    _enabled = True
    for name, patch in _ADAPTERS.items():
        if name in sys.modules:
            patch(sys.modules[name])
        elif not _hooked:
            wrapt.register_post_import_hook(_patch_if_enabled, name)
    _hooked = True


def disable() -> None:
    """Put back what :func:`enable` replaced. Layers built meanwhile keep their backend."""
    global _enabled
    _enabled = False
    PATCHES.undo()


def _patch_if_enabled(module: ModuleType) -> None:
    if _enabled:
        _ADAPTERS[module.__name__](module)
