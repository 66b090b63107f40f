# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Choosing the backend of a model that exists already."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from torch import nn

from ..attention_backends import canonical_name
from ..attention_backends import require_available
from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..layer_spec import LayerSpec
from ..layer_spec import graph_spec
from ..layer_spec import require_options
from ..layer_spec import transformer_spec
from . import graph_transformer_block
from . import transformer_attention

_ADAPTERS: dict[str, ModuleType] = {TRANSFORMER: transformer_attention, GRAPH_TRANSFORMER: graph_transformer_block}


@dataclass(frozen=True)
class LayerReport:
    """What became of one attention layer."""

    path: str
    """Name of the layer within the model."""
    kind: str
    """``"transformer"`` or ``"graph_transformer"``."""
    previous: str
    """Backend it was built or saved with."""
    backend: str
    """Backend it has now."""


def attention_layers(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield path, kind and module of each attention layer of a model, in the model's order."""
    from anemoi.models.layers.attention import MultiHeadSelfAttention
    from anemoi.models.layers.block import GraphTransformerBaseBlock

    for path, module in model.named_modules():
        if isinstance(module, MultiHeadSelfAttention):
            yield path, TRANSFORMER, module
        elif isinstance(module, GraphTransformerBaseBlock):
            yield path, GRAPH_TRANSFORMER, module


def override_backends(
    model: nn.Module, *, transformer: str | None = None, graph_transformer: str | None = None
) -> list[LayerReport]:
    """Give the attention layers of a model their backend; weights and state_dict stay as they are.

    Parameters
    ----------
    model : nn.Module
        A model of anemoi-models, just built or loaded.
    transformer, graph_transformer : str or None
        Backend for each kind of layer; None keeps the environment's choice, or else the layer's own.

    Returns
    -------
    list of LayerReport
        One entry a layer.

    Raises
    ------
    UnknownBackend
        If a name is no backend of its kind.
    BackendUnavailable
        If a backend cannot run on this machine.
    UnsupportedProblem
        If a backend does not offer an option of a layer. Dropout counts where the layer is in training mode.

    Notes
    -----
    If it raises, the model is as it was.
    """
    asked = {TRANSFORMER: transformer, GRAPH_TRANSFORMER: graph_transformer}
    chosen = {kind: canonical_name(name, kind, f"{kind} backend") for kind, name in asked.items() if name is not None}
    for kind, name in chosen.items():
        require_available(name, kind)
    layers = list(attention_layers(model))
    reports = []
    with _all_or_none(layer for _, _, layer in layers):
        for path, kind, layer in layers:
            adapter = _ADAPTERS[kind]
            previous = adapter.current_backend(layer)
            if kind in chosen:
                adapter.set_backend(layer, chosen[kind])
            else:
                adapter.set_own_backend(layer)
            reports.append(LayerReport(path, kind, previous, adapter.current_backend(layer)))
        specs = [layer_spec(*layer) for layer in layers]
        require_options(zip(specs, [report.backend for report in reports], strict=True), training=model.training)
    return reports


def layer_spec(path: str, kind: str, layer: nn.Module) -> LayerSpec:
    """Describe what one of :func:`attention_layers` asks of a backend."""

    def get(name: str, default: object) -> object:
        return getattr(layer, name, default)

    return transformer_spec(path, get) if kind == TRANSFORMER else graph_spec(path, kind, get)


@contextmanager
def _all_or_none(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Put the layers back as they were if something goes wrong."""
    before = [(layer, dict(vars(layer)), dict(layer._modules)) for layer in layers]
    try:
        yield
    except BaseException:
        for layer, attributes, children in before:
            vars(layer).clear()
            vars(layer).update(attributes)
            layer._modules.clear()
            layer._modules.update(children)
        raise
