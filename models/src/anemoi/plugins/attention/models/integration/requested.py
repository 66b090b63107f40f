# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which backend a layer is to have, when nobody has chosen one for this run."""

from __future__ import annotations

import logging
from functools import cache

from ..attention_backends import canonical_name
from ..environment import VARIABLES
from ..environment import requested_backend

LOGGER = logging.getLogger(__name__)


def environment_or(configured: str, kind: str) -> tuple[str, str]:
    """Return the backend that the environment asks for, else the layer's own.

    Parameters
    ----------
    configured : str
        What the layer was configured with, or saved with.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.

    Returns
    -------
    tuple of str
        The name, not yet resolved, and where it came from.
    """
    override = requested_backend(kind)
    if override is None:
        return configured, f"the model's {kind.replace('_', '-')} attention backend"
    name = canonical_name(override, kind, VARIABLES[kind])
    if name != configured:
        _say_once(VARIABLES[kind], name, configured)
    return name, VARIABLES[kind]


@cache
def _say_once(variable: str, name: str, configured: str) -> None:
    LOGGER.info("%s=%s overrides the model's '%s'.", variable, name, configured)
