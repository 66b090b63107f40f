# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graphs for the attention plugins of Anemoi."""

from .load import graph_names
from .load import load_graph_config

__all__ = ["graph_names", "load_graph_config"]
