# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which backend a layer is to have, when nobody has chosen one for this run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from ..attention_backends import canonical_name
from ..environment import VARIABLES
from ..environment import requested_backend
from ..errors import UnknownBackend

LOGGER = logging.getLogger(__name__)

_CHOSEN: ContextVar[Mapping[str, str]] = ContextVar("chosen")


@contextmanager
def choosing(chosen: Mapping[str, str]) -> Iterator[None]:
    """Let layers that are built meanwhile have these backends, whatever they and the environment say.

    Parameters
    ----------
    chosen : mapping of str to str
        Canonical name by kind of layer.
    """
    token = _CHOSEN.set(chosen)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def environment_or_own(layer: Any, configured: str, kind: str, stock: Callable[[Any], None]) -> str | None:
    """Return the backend that the environment asks for, else the layer's own.

    Parameters
    ----------
    layer : Module
        The host's layer.
    configured : str
        What it was configured with, or saved with.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.
    stock : callable
        The host's own ``set_attention_function``, which gets the layer if the name is none of ours.

    Returns
    -------
    str or None
        The canonical name; None if the host knew the name and has set its backend.

    Raises
    ------
    UnknownBackend
        If neither this package nor the host knows the name.
    """
    chosen = _CHOSEN.get({}).get(kind)
    if chosen is not None:
        return chosen
    override = requested_backend(kind)
    if override is None:
        try:
            return canonical_name(configured, kind, f"the model's {kind.replace('_', '-')} attention backend")
        except UnknownBackend as unknown:
            try:
                stock(layer)
            except (AssertionError, KeyError):
                raise unknown from None
            return None
    name = canonical_name(override, kind, VARIABLES[kind])
    if name != configured:
        _say_once(VARIABLES[kind], name, configured)
    return name


@cache
def _say_once(variable: str, name: str, configured: str) -> None:
    LOGGER.info("%s=%s overrides the model's '%s'.", variable, name, configured)
