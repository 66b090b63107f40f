# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fused attention for Anemoi models: kernels, backends and the way they reach the released anemoi-models."""

from .errors import BackendUnavailable
from .errors import InvalidCheckpoint
from .errors import UnknownBackend
from .errors import UnsupportedProblem
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
    "UnknownBackend",
    "UnsupportedProblem",
    "attention",
    "disable",
    "enable",
    "graph_attention",
    "graph_attention_factorised",
    "override_backends",
]
