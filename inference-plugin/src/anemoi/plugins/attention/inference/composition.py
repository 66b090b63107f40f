# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Classes made of a host's runner and ours, which pickle although no module holds them."""

from __future__ import annotations

import copyreg
from functools import cache
from typing import Any

from anemoi.inference.runner import Runner


class Composed(type(Runner)):  # type: ignore[misc]
    """The type of classes that :func:`compose` makes: they are pickled as what they are made of."""

    made_of: tuple[str, tuple[type, ...]]


@cache
def compose(name: str, bases: tuple[type, ...]) -> type[Any]:
    """Return a class of these bases that looks, to logs and messages, as if it stood where the last one does."""
    made: Any = Composed(name, bases, {"__module__": bases[-1].__module__, "__doc__": bases[-1].__doc__})
    made.made_of = (name, bases)
    return made


def _reduce(cls: Composed) -> Any:
    # A class of somebody else that inherits from one of ours has a name of its own.
    return (compose, cls.made_of) if "made_of" in vars(cls) else cls.__qualname__


copyreg.pickle(Composed, _reduce)


def reduce_instance(runner: Any) -> tuple[Any, ...]:
    """Pickle a runner of a composed class: made again without its ``__new__``, which takes a run configuration."""
    return copyreg._reconstructor, (type(runner), object, None), runner.__dict__  # type: ignore[attr-defined]
