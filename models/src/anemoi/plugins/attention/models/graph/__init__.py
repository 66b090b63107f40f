# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graph-transformer attention: the graph's layout, the public functions, the torch path and the oracle."""

from .cache import layout_of
from .functional import graph_attention
from .functional import graph_attention_factorised
from .layout import GraphLayout

__all__ = ["GraphLayout", "graph_attention", "graph_attention_factorised", "layout_of"]
