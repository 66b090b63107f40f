# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Edges that the host makes anew at every forward, although they never change: made once.

The layout of a graph is found by the memory of its edges, so that memory has to stay. Nothing here changes a result,
and models that don't use the backend are left alone. Where several processes share a model, the host sends edges
around; these are recognised by their numbers instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import TypeVar

import torch
from torch import Tensor

from ..graph.memory import EdgeMemory
from .graph_attention_module import is_in_use
from .patches import PATCHES

T = TypeVar("T")

_MEMORY = EdgeMemory()


def patch_provider(module: ModuleType) -> None:
    """Keep what ``StaticGraphProvider`` makes of the edges for a batch size."""
    provider_class: Any = getattr(module, "StaticGraphProvider", None)
    if hasattr(provider_class, "_expand_edges"):
        PATCHES.set(provider_class, "_expand_edges", _expanding(provider_class._expand_edges))


def patch_partition(module: ModuleType) -> None:
    """Keep the chunks into which a mapper cuts the edges."""
    partition_class: Any = getattr(module, "GraphPartition", None)
    if hasattr(partition_class, "materialise"):
        PATCHES.set(partition_class, "materialise", _materialising(partition_class.materialise))


def patch_mapper(module: ModuleType) -> None:
    """Keep where a mapper cuts the edges."""
    if hasattr(module, "build_graph_partition"):
        PATCHES.set(module, "build_graph_partition", _partitioning(module.build_graph_partition))


# A look-up: nothing in it can be compiled.
@torch.compiler.disable
def _remembered(edge_index: Tensor, what: tuple, compute: Callable[[], T]) -> T:
    return _MEMORY.get(edge_index, what, compute)


def _expanding(expand_edges: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(expand_edges)
    def wrapper(self: Any, edge_index: Tensor, edge_inc: Tensor, batch_size: int) -> Tensor:
        if not is_in_use() or edge_inc.is_inference():
            return expand_edges(self, edge_index, edge_inc, batch_size)
        # The provider's buffers come and go together, so that the address of one is as good as itself.
        what = ("expanded", batch_size, edge_inc.data_ptr(), edge_inc._version)
        return _remembered(edge_index, what, lambda: expand_edges(self, edge_index, edge_inc, batch_size))

    return wrapper


def _partitioning(build_graph_partition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build_graph_partition)
    def wrapper(edge_index: Tensor, num_parts: int, num_nodes: tuple[int, int]) -> Any:
        if not is_in_use():
            return build_graph_partition(edge_index, num_parts, num_nodes)
        what = ("partition", num_parts, tuple(num_nodes))
        return _remembered(edge_index, what, lambda: build_graph_partition(edge_index, num_parts, num_nodes))

    return wrapper


def _materialising(materialise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(materialise)
    def wrapper(
        self: Any,
        partition_id: int,
        x: tuple[Tensor, Tensor],
        edge_attr: Tensor,
        edge_index: Tensor,
        cond: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Any, ...]:
        if not is_in_use():
            return materialise(self, partition_id, x, edge_attr, edge_index, cond)

        def cut() -> tuple[Tensor, Tensor]:
            # The host's own function, on the numbers of the nodes, says which of them the chunk has.
            numbers = torch.arange(x[0].shape[0], device=edge_index.device)
            (sources, _), _, edges, _ = materialise(self, partition_id, (numbers, numbers), edge_index[1], edge_index)
            return edges, sources

        what = ("chunk", partition_id, tuple(self.dst_splits), tuple(self.edge_splits), x[0].shape[0])
        edges, sources = _remembered(edge_index, what, cut)
        nodes = self._get_dst_range(partition_id)
        chunk_cond = None if cond is None else (cond[0][sources], cond[1][nodes])
        return (x[0][sources], x[1][nodes]), edge_attr[self._get_edge_range(partition_id)], edges, chunk_cond

    return wrapper
