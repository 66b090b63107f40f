# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Layouts of graphs that come as an ``edge_index`` at every forward."""

from __future__ import annotations

import threading

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .layout import GraphLayout

_LOCK = threading.Lock()
# A graph's edges under batch sizes, chunks and directions; older ones are dropped.
_MAX_ENTRIES = 64
_LAYOUTS: dict[tuple, tuple[StorageWeakRef, GraphLayout]] = {}


def layout_of(
    edge_index: Tensor, num_nodes: tuple[int, int] | int, *, edges_are_dst_sorted: bool = False
) -> GraphLayout:
    """Return the layout of a graph, built when its edges are first seen.

    Known edges are recognised by their memory, without looking at them: no work on the device, no waiting. A layout
    lives as long as that memory; views of the same part share it. An in-place change is noticed by torch's version
    counter; one that escapes the counter (``.data``, NumPy) is not. Tensors made in inference mode have no counter:
    their layout is built at every call.

    Parameters
    ----------
    edge_index, num_nodes, edges_are_dst_sorted
        As in :meth:`GraphLayout.from_edge_index`.

    Raises
    ------
    ValueError
        As in :meth:`GraphLayout.from_edge_index`.
    """
    if edge_index.is_inference():
        return GraphLayout.from_edge_index(edge_index, num_nodes, edges_are_dst_sorted=edges_are_dst_sorted)
    sizes = (num_nodes, num_nodes) if isinstance(num_nodes, int) else (num_nodes[0], num_nodes[1])
    # The address of a storage is not given away again while a weak reference to it lives.
    reference = StorageWeakRef(edge_index.untyped_storage())
    key = (
        reference.cdata,
        edge_index.storage_offset(),
        edge_index.shape,
        edge_index.stride(),
        edge_index.dtype,
        edge_index.device,
        edge_index._version,
        sizes,
        edges_are_dst_sorted,
    )
    with _LOCK:
        found = _LAYOUTS.pop(key, None)
        if found is not None:
            # Back at the end: the first is the one not used for longest.
            _LAYOUTS[key] = found
            return found[1]
    layout = GraphLayout.from_edge_index(edge_index, sizes, edges_are_dst_sorted=edges_are_dst_sorted)
    with _LOCK:
        for old in [old for old, (storage, _) in _LAYOUTS.items() if storage.expired() or _outdated(old, key)]:
            del _LAYOUTS[old]
        while len(_LAYOUTS) >= _MAX_ENTRIES:
            del _LAYOUTS[next(iter(_LAYOUTS))]
        _LAYOUTS[key] = (reference, layout)
    return layout


def _outdated(old: tuple, new: tuple) -> bool:
    """Whether ``old`` describes the memory of ``new`` before an in-place change."""
    return old[0] == new[0] and old[6] < new[6]
