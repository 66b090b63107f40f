# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Loading a checkpoint that names attention code which is not installed here.

A checkpoint of anemoi is a pickled module, and names the functions and classes of its attention. Where they cannot be
imported, placeholders stand in their place until a backend replaces them. They are made for one load, and no module of
that name appears in ``sys.modules``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

# What a backend can take the place of. Anything else that is missing is an error as ever.
_REPLACEABLE = (
    "flash_attn",
    "flash_attn_interface",
    "flash_attn_2_cuda",
    "flash_attn_3",
    "triton",
    "anemoi.models.layers.attention",
    "anemoi.models.triton",
    "anemoi.plugins.attention",
)
# A package that is there and can't be loaded says so in several ways: the host's kernels raise ValueError without
# Triton, a library for another CUDA OSError.
_NOT_IMPORTABLE = (ImportError, AttributeError, ValueError, OSError)


class _PlaceholderType(type):
    """The type of placeholders: calling one after the load raises the error of its import."""

    _error: Exception
    _load: _Load

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._load.running:
            raise cls._error
        return type.__call__(cls, *args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        # `GraphTransformerFunction.apply` is saved as an attribute of a class.
        if name.startswith("__") or not cls._load.running:
            raise AttributeError(f"{cls.__module__}.{cls.__qualname__} is not installed and has no {name!r}")
        return _placeholder(cls.__module__, f"{cls.__qualname__}.{name}", cls._error, cls._load)


class _Placeholder(nn.Module, metaclass=_PlaceholderType):
    """An instance or a name that stands for one that cannot be imported; a module, as the host moves it to a device."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        nn.Module.__init__(made)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            super().__setstate__(state)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise type(self)._error


class _Load:
    """One load: while it runs, placeholders can be made."""

    running = True


def _placeholder(module: str, name: str, error: Exception, load: _Load) -> Any:
    names = {"__module__": module, "__qualname__": name, "_error": error, "_load": load}
    return _PlaceholderType(name.rpartition(".")[2], (_Placeholder,), names)


def load_checkpoint(path: str | Path, *, load: Any = None, **options: Any) -> Any:
    """Load a checkpoint as ``torch.load`` does, with placeholders for attention code that is not installed.

    Parameters
    ----------
    path : str or Path
        The checkpoint. It is unpickled, which runs code: open only what you trust.
    load : callable or None
        What loads; ``torch.load`` by default.
    **options
        Passed on, for example ``map_location``.

    Returns
    -------
    object
        What was saved. Give its layers a backend, then call :func:`require_complete`.

    Raises
    ------
    Exception
        Whatever ``torch.load`` raises, if something else is missing or the file is damaged.
    """
    running = _Load()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except _NOT_IMPORTABLE as error:
                if not any(module == prefix or module.startswith(f"{prefix}.") for prefix in _REPLACEABLE):
                    raise
                return _placeholder(module, name, error, running)

    options.setdefault("weights_only", False)
    try:
        return (load or torch.load)(
            path, pickle_module=SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle"), **options
        )
    finally:
        running.running = False


def placeholders(model: nn.Module) -> Iterator[tuple[str, str, Exception]]:
    """Yield path, name and import error of each placeholder that a model still holds."""
    for path, module in model.named_modules():
        if isinstance(module, _Placeholder):
            yield path, _name(type(module)), type(module)._error
            continue
        for attribute, value in vars(module).items():
            if isinstance(value, _PlaceholderType):
                yield f"{path}.{attribute}".lstrip("."), _name(value), value._error


def require_complete(model: nn.Module) -> None:
    """Check that no placeholder is left in a model.

    Raises
    ------
    Exception
        The error of the import that failed, with the layer that needs it as a note.
    """
    for path, name, error in placeholders(model):
        error.add_note(f"The model's '{path}' needs {name}, which no attention backend can take the place of.")
        raise error


def _name(placeholder: type) -> str:
    return f"{placeholder.__module__}.{placeholder.__qualname__}"
