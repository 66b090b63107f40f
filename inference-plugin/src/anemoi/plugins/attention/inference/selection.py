# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which backend a run is to use, decided before anything is read: run configuration > environment > checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from .options import AttentionOptions
from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models.attention_backends import canonical_name
from anemoi.plugins.attention.models.attention_backends import require_available
from anemoi.plugins.attention.models.environment import VARIABLES
from anemoi.plugins.attention.models.environment import requested_backend

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The backend chosen for one kind of layer."""

    kind: str
    """``"transformer"`` or ``"graph_transformer"``."""
    backend: str
    """Canonical name."""
    source: str
    """Where it came from: a key of the run configuration, or an environment variable."""


def choose_backends(options: AttentionOptions) -> tuple[Choice, ...]:
    """Decide for each kind of layer.

    Parameters
    ----------
    options : AttentionOptions
        What the run configuration asks for; it wins over the environment.

    Returns
    -------
    tuple of Choice
        Kinds that nobody chose a backend for are absent: the checkpoint decides.

    Raises
    ------
    UnknownBackend
        If a name is no backend, even one that another source overrules.
    """
    warn_of_misspelt_variables()
    return tuple(choice for choice in (_choose(kind, options) for kind in VARIABLES) if choice is not None)


def require_choices(choices: Iterable[Choice], device_type: str) -> None:
    """Check that chosen backends can run on a device.

    Parameters
    ----------
    choices : iterable of Choice
        What was chosen.
    device_type : str
        Where the model is to run, for example ``"cpu"``.

    Raises
    ------
    BackendUnavailable
        If one cannot.
    """
    for choice in choices:
        try:
            require_available(choice.backend, choice.kind, device_type)
        except BackendUnavailable as error:
            raise BackendUnavailable(f"{choice.source}={choice.backend}: {error}") from None


def _choose(kind: str, options: AttentionOptions) -> Choice | None:
    candidates = [
        Choice(kind, canonical_name(name, kind, source), source)
        for name, source in (
            (options.backends.get(kind), options.source(kind)),
            (requested_backend(kind), VARIABLES[kind]),
        )
        if name is not None
    ]
    if not candidates:
        return None
    winner, *overruled = candidates
    for loser in overruled:
        if loser.backend != winner.backend:
            LOGGER.info("%s=%s wins over %s=%s.", winner.source, winner.backend, loser.source, loser.backend)
    return winner


def warn_of_misspelt_variables() -> None:
    """Warn of environment variables that look like ours but are none: without that, a typo would do nothing."""
    known = list(VARIABLES.values())
    for name in sorted(os.environ):
        closest = get_close_matches(name.upper(), known, n=1, cutoff=0.85)
        if closest and name not in known:
            LOGGER.warning(
                "Environment variable %s is not known and has no effect. Allowed: %s. Did you mean %s?",
                name,
                ", ".join(known),
                closest[0],
            )
