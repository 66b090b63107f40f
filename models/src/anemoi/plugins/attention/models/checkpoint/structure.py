# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The structure of a pickled object, without its classes: nothing is imported, nothing is executed, no weight is read.

This is how a checkpoint is looked at where it cannot be loaded, and before it is.
"""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Iterator
from typing import Any
from typing import ClassVar


class Saved:
    """An object of a pickle: the name of what makes it, the arguments that it is made with, and its state."""

    module: ClassVar[str] = ""
    name: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Saved:
        """Make one with any arguments; pickles of classes call this."""
        made = object.__new__(cls)
        made.args = args
        made.state = None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Saved:
        """Stand for the result, where a pickle calls what it has made: a bound method, for example."""
        return Saved(*args)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take an item of a mapping; the structure of modules needs none."""

    def append(self, value: Any) -> None:
        """Take an element of a list; the structure of modules needs none."""

    def extend(self, values: Any) -> None:
        """Take elements of a list; the structure of modules needs none."""

    def add(self, value: Any) -> None:
        """Take an element of a set; the structure of modules needs none."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, as far as the state is a mapping of names."""
        # Objects with slots have a pair as state.
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state if isinstance(state, dict) else {}

    @property
    def submodules(self) -> dict[str, Any]:
        """The children of a ``torch.nn.Module``."""
        found = self.attributes.get("_modules")
        return found if isinstance(found, dict) else {}


_PLAIN = {
    kind.__name__: kind for kind in (bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
} | {"long": int}


class _StructureUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._classes: dict[tuple[str, str], type[Saved]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in _PLAIN:
            return _PLAIN[name]
        if module == "collections" and name in ("OrderedDict", "defaultdict"):
            return getattr(collections, name)
        if (module, name) in (("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")):
            return _reconstruct
        key = (module, name)
        if key not in self._classes:
            self._classes[key] = type(name, (Saved,), {"module": module, "name": name})
        return self._classes[key]

    def persistent_load(self, pid: Any) -> Any:
        # torch's storages: what kind, which record, where, how many elements.
        return pid


def _reconstruct(cls: Any, base: Any, state: Any) -> Any:
    return cls()


def read_structure(data: bytes) -> Any:
    """Return what a pickle holds, each object as a :class:`Saved`.

    Parameters
    ----------
    data : bytes
        The pickle, as torch writes it.

    Raises
    ------
    pickle.UnpicklingError
        If it is no pickle.
    """
    try:
        return _StructureUnpickler(data).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        # Damaged pickles raise whatever their bytes happen to say.
        raise pickle.UnpicklingError(f"not a pickle of modules: {error}") from error


def saved_modules(root: Saved) -> Iterator[tuple[str, Saved]]:
    """Yield path and module, in the order and with the names of ``torch.nn.Module.named_modules``."""
    seen: set[int] = set()
    pending: list[tuple[str, Saved]] = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = [
            (f"{path}.{name}" if path else str(name), child)
            for name, child in module.submodules.items()
            if isinstance(child, Saved)
        ]
        pending += reversed(children)


def mentioned(value: Any) -> Iterator[type[Saved]]:
    """Yield the classes and functions that an object names: its own, and those among its arguments."""
    if isinstance(value, type) and issubclass(value, Saved):
        yield value
    elif isinstance(value, Saved):
        yield type(value)
        yield from mentioned(value.args)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from mentioned(part)
