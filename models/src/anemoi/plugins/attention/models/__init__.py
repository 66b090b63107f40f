# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fused attention for Anemoi models: kernels, backends and the way they reach the released anemoi-models."""

from importlib import import_module
from typing import TYPE_CHECKING
from typing import Any

from .errors import BackendUnavailable
from .errors import InvalidCheckpoint
from .errors import InvalidOutput
from .errors import UnknownBackend
from .errors import UnsupportedProblem

if TYPE_CHECKING:
    from .functional import attention
    from .graph import GraphLayout
    from .graph import graph_attention
    from .graph import graph_attention_factorised
    from .integration import disable
    from .integration import enable
    from .integration import override_backends

__all__ = [
    "BackendUnavailable",
    "GraphLayout",
    "InvalidCheckpoint",
    "InvalidOutput",
    "UnknownBackend",
    "UnsupportedProblem",
    "attention",
    "disable",
    "enable",
    "graph_attention",
    "graph_attention_factorised",
    "override_backends",
]

# These need torch, which takes seconds to import: the help of the command line does without.
_LATER = {
    "GraphLayout": ".graph",
    "attention": ".functional",
    "disable": ".integration",
    "enable": ".integration",
    "graph_attention": ".graph",
    "graph_attention_factorised": ".graph",
    "override_backends": ".integration",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATER[name], __name__), name)
    globals()[name] = value
    return value
