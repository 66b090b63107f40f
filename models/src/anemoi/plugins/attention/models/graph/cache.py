# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Layouts of graphs that come as an ``edge_index`` at every forward."""

from __future__ import annotations

import threading
import weakref

from torch import Tensor

from .layout import GraphLayout
from .memory import EdgeMemory

_LOCK = threading.Lock()
_MEMORY = EdgeMemory()
# All layouts that somebody holds, for edges that are copied at every forward.
_ALIVE: weakref.WeakSet[GraphLayout] = weakref.WeakSet()


class RecentLayouts:
    """The layouts that a layer has used last, so that they outlive edges which are made anew at every forward.

    Parameters
    ----------
    size : int
        How many: no less than the chunks into which a forward cuts the graph.
    """

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._layouts: dict[GraphLayout, None] = {}

    def keep(self, layout: GraphLayout) -> None:
        """Hold a layout, and let the one go that has not been used for longest."""
        self._layouts.pop(layout, None)
        self._layouts[layout] = None
        while len(self._layouts) > self._size:
            self._layouts.pop(next(iter(self._layouts)), None)


def layout_of(
    edge_index: Tensor, num_nodes: tuple[int, int] | int, *, edges_are_dst_sorted: bool = False
) -> GraphLayout:
    """Return the layout of a graph, built when its edges are first seen.

    Known edges are recognised by their memory, without looking at them; see
    :class:`~anemoi.plugins.attention.models.graph.memory.EdgeMemory`. A layout lives as long as that memory. Copies of
    edges whose layout is still held by someone, for example in :class:`RecentLayouts`, are recognised by comparing the
    numbers: cheaper than sorting, but the device is waited for.

    Parameters
    ----------
    edge_index, num_nodes, edges_are_dst_sorted
        As in :meth:`GraphLayout.from_edge_index`.

    Raises
    ------
    ValueError
        As in :meth:`GraphLayout.from_edge_index`.
    """
    sizes = (num_nodes, num_nodes) if isinstance(num_nodes, int) else (int(num_nodes[0]), int(num_nodes[1]))
    layout = _MEMORY.get(edge_index, ("layout", sizes), lambda: _equal_or_new(edge_index, sizes, edges_are_dst_sorted))
    layout.check_order(edges_are_dst_sorted)
    return layout


def _equal_or_new(edge_index: Tensor, sizes: tuple[int, int], edges_are_dst_sorted: bool) -> GraphLayout:
    with _LOCK:
        alive = list(_ALIVE)
    for layout in alive:
        if layout.num_nodes == sizes and layout.describes(edge_index):
            return layout
    layout = GraphLayout.from_edge_index(edge_index, sizes, edges_are_dst_sorted=edges_are_dst_sorted)
    with _LOCK:
        _ALIVE.add(layout)
    return layout
