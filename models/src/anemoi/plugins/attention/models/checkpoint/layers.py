# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention layers of a checkpoint, read without loading it."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..layer_spec import LayerSpec
from ..layer_spec import graph_spec
from ..layer_spec import transformer_spec
from .archive import CheckpointArchive
from .archive import invalid
from .structure import Saved
from .structure import mentioned
from .structure import read_structure
from .structure import saved_modules

_STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
}
_LIGHTNING = "pytorch-lightning_version"


@dataclass(frozen=True)
class SavedLayer:
    """One attention layer of a checkpoint."""

    spec: LayerSpec
    backend: str
    """Name of the backend that it was saved with, as the host spells it."""
    symbols: tuple[tuple[str, str], ...] = ()
    """Module and name of the classes and functions, outside of torch, that its attention refers to."""
    dtype: torch.dtype | None = None
    """Of its weights."""

    def missing(self) -> list[str]:
        """Return the symbols that cannot be had here."""
        return [f"{module}.{name}" for module, name in self.symbols if not _is_installed(module, name)]


def read_layers(path: str | Path) -> list[SavedLayer]:
    """List the attention layers of an inference checkpoint, in the model's order.

    The file is not loaded: no package that it names has to be installed, and no weight is read.

    Raises
    ------
    InvalidCheckpoint
        If it is no checkpoint, or holds no model.
    """
    return layers_of(CheckpointArchive(path))


def layers_of(archive: CheckpointArchive) -> list[SavedLayer]:
    """List the attention layers; see :func:`read_layers`."""
    root = read_root(archive)
    layers = (_layer(name, module) for name, module in saved_modules(root))
    return [layer for layer in layers if layer is not None]


def read_root(archive: CheckpointArchive) -> Saved:
    """Return the structure of the saved model.

    Raises
    ------
    InvalidCheckpoint
        If the archive holds something else.
    """
    try:
        root = read_structure(archive.pickled())
    except pickle.UnpicklingError as error:
        raise invalid(archive.path, f"it is damaged ({error})", "Copy it again from where it came from.") from error
    if isinstance(root, Saved) and root.submodules:
        return root
    if isinstance(root, dict) and _LIGHTNING in root:
        raise invalid(
            archive.path,
            "it is a training checkpoint of Lightning, which holds weights but no layers: the training configuration "
            "chooses the backend",
            "Take the inference checkpoint beside it (inference-*.ckpt), or make one with "
            "'anemoi-training checkpoint inference'.",
        )
    what = f"a dictionary of {len(root)} entries (a state_dict)" if isinstance(root, dict) else type(root).__name__
    raise invalid(archive.path, f"it holds no model but {what}", "Save the model itself.")


def _layer(path: str, module: Saved) -> SavedLayer | None:
    attributes, children = module.attributes, module.submodules
    if "lin_edge" in children and "lin_query" in children:
        spec = graph_spec(path, GRAPH_TRANSFORMER, attributes.get)
        backend = attributes.get("graph_attention_backend") or "pyg"
        held = children.get("conv", attributes.get("conv"))
    elif "num_heads" in attributes and ("lin_q" in children or "lin_qkv" in children):
        spec = transformer_spec(path, attributes.get)
        held = children.get("attention", attributes.get("attention"))
        backend = attributes.get("attention_implementation") or _backend_of(held)
    else:
        return None
    return SavedLayer(spec, str(backend), _symbols(held), _dtype(module))


def _dtype(module: Saved) -> torch.dtype | None:
    """Return the dtype of the first weight that is found below a layer."""
    for _, part in saved_modules(module):
        for weight in part.attributes.get("_parameters", {}).values():
            for symbol in mentioned(weight):
                if symbol.module == "torch" and symbol.name in _STORAGES:
                    return _STORAGES[symbol.name]
    return None


def _backend_of(held: Any) -> str:
    """Name the backend of releases that keep a bare function."""
    flash = any("flash" in f"{symbol.module}.{symbol.name}" for symbol in mentioned(held))
    return "flash_attention" if flash else "scaled_dot_product_attention"


def _symbols(held: Any) -> tuple[tuple[str, str], ...]:
    parts = [held, *held.attributes.values(), *held.submodules.values()] if isinstance(held, Saved) else [held]
    found = dict.fromkeys((symbol.module, symbol.name) for part in parts for symbol in mentioned(part))
    return tuple(pair for pair in found if not pair[0].startswith(("torch", "builtins", "__builtin__", "_operator")))


@cache
def _is_installed(module: str, name: str) -> bool:
    try:
        if module.startswith("anemoi."):
            # Importing the host takes seconds. It is there or not.
            return importlib.util.find_spec(module) is not None
        found = importlib.import_module(module)
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    return hasattr(found, name.partition(".")[0])


def kinds_of(layers: list[SavedLayer]) -> list[str]:
    """Return the kinds of layer that there are, transformer first."""
    present = {layer.spec.kind for layer in layers}
    return [kind for kind in (TRANSFORMER, GRAPH_TRANSFORMER) if kind in present]
