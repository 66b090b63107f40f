# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention of a checkpoint and of this machine, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from ..attention_backends import canonical_name
from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..errors import InvalidCheckpoint
from ..errors import UnknownBackend
from ..layer_spec import graph_spec
from ..layer_spec import refusals
from ..layer_spec import transformer_spec
from ..layer_spec import usable_backends
from .archive import CheckpointArchive
from .layers import SavedLayer
from .layers import layers_of

_KEYS = {"attention_implementation": TRANSFORMER, "graph_attention_backend": GRAPH_TRANSFORMER}


@dataclass(frozen=True)
class Description:
    """What a checkpoint holds."""

    layers: list[SavedLayer]
    problem: str | None = None
    """Why the layers are those of the configuration in the metadata, which has one entry for many; None if not."""
    counts: list[int] = field(default_factory=list)
    """Number of layers of each entry; empty if each is one."""


def describe(path: str | Path) -> Description:
    """List the attention layers of a checkpoint; if it holds none, those of the configuration in its metadata.

    Raises
    ------
    InvalidCheckpoint
        If it is no checkpoint, or has neither.
    """
    archive = CheckpointArchive(path)
    try:
        return Description(layers_of(archive))
    except InvalidCheckpoint as error:
        model = ((archive.metadata() or {}).get("config") or {}).get("model")
        found = list(_configured("config.model", model))
        if not found:
            raise
        return Description([layer for layer, _ in found], str(error), [count for _, count in found])


def _configured(path: str, part: Any) -> Iterator[tuple[SavedLayer, int]]:
    """Yield the entries of a configuration that name a backend, and how many layers each makes."""
    if not isinstance(part, dict):
        return
    for key, kind in _KEYS.items():
        if isinstance(part.get(key), str):
            attributes = {**part, "out_channels_conv": _head_dim(part), "head_dim": _head_dim(part)}
            if kind == TRANSFORMER:
                spec = transformer_spec(path, attributes.get)
            else:
                spec = graph_spec(path, kind, attributes.get)
            count = part.get("num_layers")
            yield SavedLayer(spec, part[key]), count if isinstance(count, int) else 1
    for name, child in part.items():
        yield from _configured(f"{path}.{name}", child)


def _head_dim(part: dict[str, Any]) -> int:
    channels = part.get("attn_channels") or part.get("num_channels") or 0
    return channels // max(part.get("num_heads") or 1, 1)


def verdict(layer: SavedLayer, device_type: str | None = None) -> tuple[list[str], list[str]]:
    """Say whether a layer can run with the backend that it was saved with.

    Parameters
    ----------
    layer : SavedLayer
        The layer.
    device_type : str or None
        ``"cpu"`` or ``"cuda"``; None asks about the machine as a whole.

    Returns
    -------
    reasons : list of str
        Why it cannot; empty if it can.
    usable : list of str
        The backends that can run it here.
    """
    usable = usable_backends(layer.spec, device_type)
    try:
        name = canonical_name(layer.backend, layer.spec.kind, "the checkpoint")
    except UnknownBackend as error:
        return [str(error)], usable
    return refusals(layer.spec, name, device_type), usable
