# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Swapping the backends of a runner's model once it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from functools import cached_property
from typing import Any

import torch
from anemoi.inference.runner import Runner

from .agreement import require_agreement
from .checks import HOST_KERNEL
from .checks import check_run
from .composition import compose
from .composition import reduce_instance
from .options import AttentionOptions
from .run_facts import computing_dtype
from .run_facts import device_of
from .run_facts import loads_checkpoint
from .selection import Choice
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models import override_backends
from anemoi.plugins.attention.models.attention_backends import backends
from anemoi.plugins.attention.models.attention_backends import canonical_name
from anemoi.plugins.attention.models.checkpoint import require_complete
from anemoi.plugins.attention.models.environment import GRAPH_TRANSFORMER
from anemoi.plugins.attention.models.integration import LayerReport
from anemoi.plugins.attention.models.integration import attention_layers
from anemoi.plugins.attention.models.integration.requested import choosing

LOGGER = logging.getLogger(__name__)

CHECKPOINT = "the checkpoint"


class AttentionOverride:
    """Gives a runner's model the backends that were chosen for the run.

    A mixin that comes before the runner's own class: a runner that overrides ``model``, to rebuild it for another
    graph for example, is done by then.
    """

    attention_choices: tuple[Choice, ...] = ()
    attention_options: AttentionOptions = AttentionOptions()
    _checked = False

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Run as the runner does; what makes the run impossible is found before its input is read."""
        self.check_attention()
        super().execute(*args, **kwargs)  # type: ignore[misc]

    def check_attention(self) -> None:
        """Check device, backends and options; see :func:`~anemoi.plugins.attention.inference.checks.check_run`."""
        if not self._checked and loads_checkpoint(self):
            require_agreement(self, self.attention_choices)
            check_run(
                self.checkpoint.path,  # type: ignore[attr-defined]
                self.attention_choices,
                self.attention_options,
                device_of(self),
                computing_dtype(self),
            )
        self._checked = True

    @cached_property
    def model(self) -> torch.nn.Module:
        """The loaded model with its attention layers swapped; weights and state_dict are those of the checkpoint."""
        # A runner of the low-level interface has no execute().
        self.check_attention()
        with choosing({choice.kind: choice.backend for choice in self.attention_choices}):
            # As the host does before its first step: dropout that is off is no reason to refuse a backend.
            model: torch.nn.Module = super().model.eval()  # type: ignore[misc]
        apply_choices(
            model,
            self.attention_choices,
            device_of(self).type,
            log_level=logging.INFO if getattr(self, "is_master", True) else logging.DEBUG,
        )
        require_complete(model)
        return model

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduce_instance(self)


@cache
def with_override(runner_class: type[Runner]) -> type[Runner]:
    """Return a runner's class with :class:`AttentionOverride` before it, under the name it had."""
    if issubclass(runner_class, AttentionOverride):
        return runner_class
    return compose(runner_class.__name__, (AttentionOverride, runner_class))


def apply_choices(
    model: torch.nn.Module, choices: Iterable[Choice], device_type: str, log_level: int = logging.INFO
) -> list[LayerReport]:
    """Swap the backends of a loaded model and log, in one line, what each kind of layer uses and why.

    Parameters
    ----------
    model : nn.Module
        The model, on its device.
    choices : iterable of Choice
        At most one a kind of layer; kinds without one keep the checkpoint's backend.
    device_type : str
        Where the model runs.
    log_level : int
        Level of that line.

    Returns
    -------
    list of LayerReport
        One entry a layer.
    """
    sources = {choice.kind: choice.source for choice in choices}
    chosen = {choice.kind: choice.backend for choice in choices}
    if GRAPH_TRANSFORMER not in chosen and _graph_kernel_cannot_run(model, device_type):
        # The host does the same where there is no GPU at all; here there may be one that the run doesn't use.
        chosen[GRAPH_TRANSFORMER] = "pyg"
        LOGGER.warning(
            "The checkpoint's graph-transformer backend 'triton' cannot run here (%s): taking 'pyg'.",
            backends(GRAPH_TRANSFORMER)["triton"].available(device_type)[1],
        )
    reports = override_backends(model, **chosen)
    LOGGER.log(log_level, "Attention backends: %s.", _summary(reports, sources, device_type))
    for kind, source in sources.items():
        if not any(report.kind == kind for report in reports):
            LOGGER.warning(
                "%s=%s has no effect: the model has no %s attention layer. Layers it has: %s. Remove the option.",
                source,
                chosen[kind],
                kind,
                ", ".join(sorted({report.kind for report in reports})) or "none",
            )
    return reports


def _graph_kernel_cannot_run(model: torch.nn.Module, device_type: str) -> bool:
    saved = {(kind, getattr(layer, "graph_attention_backend", None)) for _, kind, layer in attention_layers(model)}
    kind, name = HOST_KERNEL
    return HOST_KERNEL in saved and not backends(kind)[name].available(device_type)[0]


def _summary(reports: list[LayerReport], sources: dict[str, str], device_type: str) -> str:
    groups: dict[tuple[str, str, str], int] = {}
    for report in reports:
        key = (report.kind, report.backend, report.previous)
        groups[key] = groups.get(key, 0) + 1
    if not groups:
        return "none, the model has no attention layer"
    parts = []
    for (kind, backend, previous), count in groups.items():
        how = backends(kind)[backend].available(device_type)[1]
        layers = "1 layer" if count == 1 else f"{count} layers"
        why = _reason(kind, backend, previous, sources.get(kind))
        parts.append(f"{kind}={backend} ({how}) in {layers}, {why}")
    return "; ".join(parts)


def _reason(kind: str, backend: str, previous: str, source: str | None) -> str:
    same = _canonical(previous, kind) == backend
    if source is None:
        return f"from {CHECKPOINT}" if same else f"as {CHECKPOINT}'s {previous} cannot run here"
    return f"from {source}" if same else f"from {source}, {CHECKPOINT} says {previous}"


def _canonical(name: str, kind: str) -> str:
    try:
        return canonical_name(name, kind, CHECKPOINT)
    except UnknownBackend:
        # A checkpoint may name a backend of a release that this one no longer knows.
        return name
