# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Pickling what only this package can restore, so that a load without it says what to install.

A pickle names classes and calls functions, in the order in which they stand. Calls of stock functions in front of a
class of ours check that the package is there: without them, the load would end with ``No module named
'anemoi.plugins'``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from importlib.metadata import distributions
from typing import Any

import torch

_DISTRIBUTION = "anemoi-plugins-attention-models"


class _Call:
    """Is pickled as the call of a function, which the load makes."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._call


def reduce_with_requirement(why: str, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Return what ``__reduce_ex__`` gives for an object that a function of this package makes.

    Parameters
    ----------
    why : str
        Second half of the sentence with which a load fails where this package is not installed.
    function : callable
        Makes the object.
    *args
        Its arguments.
    """
    installed = _Call(any, _Call(partial(distributions, name=_DISTRIBUTION)))
    checked = _Call(torch._assert, installed, f"To open this checkpoint, install the package {_DISTRIBUTION}: {why}.")
    return operator.getitem, ([checked, _Call(function, *args)], 1)
