# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention backends and their names.

``transformer/`` and ``graph_transformer/`` hold one module a backend; this package finds them by name and says why one
can't be had.
"""

from typing import Any

from anemoi.utils.registry import Registry

from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..errors import BackendUnavailable
from ..errors import UnknownBackend
from .base import Backend
from .base import TransformerBackend
from .graph_transformer import graph_transformer_backend_registry
from .transformer import transformer_backend_registry

__all__ = [
    "Backend",
    "TransformerBackend",
    "backends",
    "canonical_name",
    "graph_backends",
    "names",
    "require_available",
    "transformer_backends",
]


def _collect(registry: Registry[Any], *preferred: str) -> dict[str, Any]:
    found = {backend.name: backend for backend in (registry.create(key) for key in registry.registered)}
    return {name: found[name] for name in (*preferred, *(name for name in found if name not in preferred))}


# Collected once and here: torch.compile traces what runs later, and cannot trace a registry.
_BACKENDS: dict[str, dict[str, Any]] = {
    TRANSFORMER: _collect(
        transformer_backend_registry,
        "triton_attention",
        "flash_attention",
        "scaled_dot_product_attention",
        "flex_attention",
    ),
    GRAPH_TRANSFORMER: _collect(graph_transformer_backend_registry),
}


def transformer_backends() -> dict[str, TransformerBackend]:
    """Return the backends of transformer layers by name, the preferred ones first."""
    return _BACKENDS[TRANSFORMER]


def graph_backends() -> dict[str, Backend]:
    """Return the backends of graph-transformer layers by name."""
    return _BACKENDS[GRAPH_TRANSFORMER]


def backends(kind: str) -> dict[str, Backend]:
    """Return the backends of a kind of layer (``"transformer"`` or ``"graph_transformer"``) by name."""
    return _BACKENDS[kind]


def names(kind: str) -> list[str]:
    """Return all names accepted for a kind of layer, aliases last."""
    found = backends(kind)
    return [*found, *(alias for backend in found.values() for alias in backend.aliases)]


def canonical_name(name: object, kind: str, what: str) -> str:
    """Resolve aliases.

    Parameters
    ----------
    name : object
        The name as the user gave it.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.
    what : str
        Where the name came from, for the message: a configuration key or an environment variable.

    Raises
    ------
    UnknownBackend
        If it is no name of a backend of this kind.
    """
    for backend in backends(kind).values():
        if name == backend.name or name in backend.aliases:
            return backend.name
    raise UnknownBackend(what, name, names(kind))


def require_available(name: str, kind: str, device_type: str | None = None) -> None:
    """Check that a backend can run on this machine.

    Parameters
    ----------
    name : str
        Canonical name of the backend.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.
    device_type : str or None
        ``"cpu"`` or ``"cuda"``: where it is to run; None asks about the machine as a whole.

    Raises
    ------
    BackendUnavailable
        With the reason and the names that can be used instead.
    """
    candidates = backends(kind)
    available, reason = candidates[name].available(device_type)
    if not available:
        usable = [other for other, backend in candidates.items() if backend.available(device_type)[0]]
        raise BackendUnavailable(
            f"Backend '{name}' cannot run the {kind.replace('_', '-')} attention here: {reason}. "
            f"Usable here: {', '.join(usable)}. Choose one of these."
        )
