# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What is known before a run reads its input: whether the device is there, and whether the backends can run the layers.

The checkpoint is looked at without loading it, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .options import AttentionOptions
from .selection import Choice
from .selection import require_choices
from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models.attention_backends import backends
from anemoi.plugins.attention.models.attention_backends import canonical_name
from anemoi.plugins.attention.models.checkpoint import SavedLayer
from anemoi.plugins.attention.models.checkpoint import is_archive
from anemoi.plugins.attention.models.checkpoint import read_layers
from anemoi.plugins.attention.models.environment import GRAPH_TRANSFORMER
from anemoi.plugins.attention.models.environment import VARIABLES
from anemoi.plugins.attention.models.layer_spec import LayerSpec
from anemoi.plugins.attention.models.layer_spec import require_options

HOST_KERNEL = (GRAPH_TRANSFORMER, "triton")
"""The one backend of a checkpoint that may be replaced without being asked for."""


class DeviceUnavailable(RuntimeError):
    """The run configuration names a device that torch does not see."""


def require_device(device: torch.device) -> None:
    """Check that torch sees the device of a run.

    Raises
    ------
    DeviceUnavailable
        If it is a GPU, and there is none, or none of this number.
    """
    if device.type != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return
    allowed = ", ".join(["cpu", *(f"cuda:{index}" for index in range(count))])
    raise DeviceUnavailable(
        f"The run cannot use device={str(device)!r}: torch {torch.__version__} sees {count or 'no'} "
        f"CUDA device{'' if count == 1 else 's'} here. Allowed: {allowed}. "
        f"Set 'device: {'cuda:0' if count else 'cpu'}' in the run configuration, or run on a machine that has it."
    )


def check_run(
    checkpoint: str,
    choices: tuple[Choice, ...],
    options: AttentionOptions,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> None:
    """Check that a run can have its backends.

    Parameters
    ----------
    checkpoint : str
        Its path. One that cannot be read is left to the run.
    choices : tuple of Choice
        What was chosen; other kinds of layer keep the checkpoint's backend.
    options : AttentionOptions
        Names the key of the run configuration for the messages.
    device : torch.device
        Where the model is to run.
    dtype : torch.dtype or None
        Precision of the run; None if the weights decide.

    Raises
    ------
    DeviceUnavailable
        If the device is not there.
    BackendUnavailable
        If a backend cannot run on the device, chosen or the checkpoint's.
    UnsupportedProblem
        If a backend does not offer an option of a layer.
    InvalidCheckpoint
        If the checkpoint holds no model.
    """
    require_device(device)
    require_choices(choices, device.type)
    if not is_archive(checkpoint):
        # The host's tests have checkpoints that are no files.
        return
    layers = read_layers(checkpoint)
    chosen = {choice.kind: choice.backend for choice in choices}
    _require_own([layer for layer in layers if layer.spec.kind not in chosen], options, device.type)
    by_dtype: dict[torch.dtype | None, list[tuple[LayerSpec, str]]] = {}
    for layer in layers:
        name = chosen.get(layer.spec.kind) or _known(layer)
        if name is not None:
            by_dtype.setdefault(dtype or layer.dtype, []).append((layer.spec, name))
    for computed_in, wanted in by_dtype.items():
        require_options(wanted, device.type, dtype=computed_in)


def _known(layer: SavedLayer) -> str | None:
    try:
        return canonical_name(layer.backend, layer.spec.kind, "the checkpoint")
    except UnknownBackend:
        # The host may know it.
        return None


def _require_own(layers: Iterable[SavedLayer], options: AttentionOptions, device_type: str) -> None:
    """Check that the checkpoint's own backends are there.

    Except the graph kernel of anemoi-models: where it cannot run, its layers take pyg, as in anemoi-models.
    """
    count: dict[tuple[str, str], int] = {}
    for layer in layers:
        key = (layer.spec.kind, _known(layer) or layer.backend)
        count[key] = count.get(key, 0) + 1
    for (kind, name), number in count.items():
        if name not in backends(kind) or (kind, name) == HOST_KERNEL:
            continue
        available, reason = backends(kind)[name].available(device_type)
        if available:
            continue
        usable = [other for other, backend in backends(kind).items() if backend.available(device_type)[0]]
        raise BackendUnavailable(
            f"The checkpoint's backend '{name}' cannot run its {number} {kind.replace('_', '-')} "
            f"layer{'s' if number > 1 else ''} here: {reason}. Usable here: {', '.join(usable)}. "
            f"Set {options.source(kind)}: {usable[0]} in the run configuration, or {VARIABLES[kind]}={usable[0]}."
        )
