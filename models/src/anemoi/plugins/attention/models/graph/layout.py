# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A graph's edges in the two orders that attention needs, built once for every layer and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

# A source with more edges is split into segments of this many.
SEGMENT = 512
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class GraphLayout:
    """Edges sorted by destination (CSC) and by source (CSR). Make one with :meth:`from_edge_index`.

    Layouts compare and hash by identity. Index tensors are int32, or int64 for graphs beyond 2^31 nodes or edges.

    Parameters
    ----------
    num_nodes : tuple of int
        ``(N_src, N_dst)``.
    num_edges : int
        M.
    max_in_degree, max_out_degree : int
        Most edges that one destination and one source has.
    tensors : list of Tensor
        In this order: ``destination_offsets`` ``[N_dst + 1]``; ``source`` and ``destination`` ``[M]`` of the edges by
        destination; ``edge_row`` ``[M]``, the caller's row of each, empty if the caller's order is this one;
        ``source_offsets`` ``[N_src + 1]``; ``source_edge`` and ``source_destination`` ``[M]``, position by destination
        and destination of the edges by source; ``segment_begin`` and ``segment_end`` ``[S]`` of the segments of
        sources with very many edges; those sources, ``hub`` ``[K]``; their segments, ``hub_offsets`` ``[K + 1]``.
    """

    num_nodes: tuple[int, int]
    num_edges: int
    max_in_degree: int
    max_out_degree: int
    tensors: list[Tensor]

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, num_nodes: tuple[int, int] | int, *, edges_are_dst_sorted: bool = False
    ) -> GraphLayout:
        """Sort the edges of a graph. Waits for the device once or twice.

        Parameters
        ----------
        edge_index : Tensor
            Integer ``[2, M]``: source and destination of each edge, in any order; repeated edges count repeatedly.
        num_nodes : int or tuple of int
            ``(N_src, N_dst)``, or one number for both.
        edges_are_dst_sorted : bool
            A claim of the caller that is checked. Sorted edges are recognised without it.

        Raises
        ------
        ValueError
            If ``edge_index`` is no ``[2, M]`` of integers, an edge names a node that does not exist, or edges said to
            be sorted are not.
        """
        sizes = (num_nodes, num_nodes) if isinstance(num_nodes, int) else (int(num_nodes[0]), int(num_nodes[1]))
        _check_form(edge_index)
        source, destination = edge_index.detach().long()
        num_edges = source.shape[0]
        is_sorted = _check_edges(source, destination, sizes, edges_are_dst_sorted)
        edge_row = source.new_empty(0)
        if not is_sorted:
            destination, edge_row = torch.sort(destination, stable=True)
            source = source[edge_row]
        sorted_source, source_edge = torch.sort(source, stable=True)
        destination_offsets = _offsets(destination, sizes[1])
        source_offsets = _offsets(sorted_source, sizes[0])
        out_degrees = source_offsets.diff()
        max_in_degree, max_out_degree = torch.stack(
            [_largest(destination_offsets.diff()), _largest(out_degrees)]
        ).tolist()
        tensors = [
            destination_offsets,
            source,
            destination,
            edge_row,
            source_offsets,
            source_edge,
            destination[source_edge],
            *_segments(source_offsets, out_degrees, max_out_degree),
        ]
        dtype = torch.int32 if max(*sizes, num_edges) < _INT32_MAX else torch.int64
        # Copies: a view would keep the memory of `edge_index` alive.
        tensors = [tensor.to(dtype, copy=True, memory_format=torch.contiguous_format) for tensor in tensors]
        return cls(sizes, num_edges, max_in_degree, max_out_degree, tensors)

    @property
    def device(self) -> torch.device:
        """Where the index tensors are."""
        return self.tensors[0].device

    @property
    def source(self) -> Tensor:
        """Source of each edge, ``[M]``, ordered by destination."""
        return self.tensors[1]

    @property
    def destination(self) -> Tensor:
        """Destination of each edge, ``[M]``, ascending."""
        return self.tensors[2]

    @property
    def edge_row(self) -> Tensor | None:
        """The caller's row of each edge by destination, ``[M]``; None if the caller's order is this one."""
        return self.tensors[3] if self.tensors[3].numel() else None

    def check_order(self, edges_are_dst_sorted: bool) -> None:
        """Check a claim about the order of the edges.

        Raises
        ------
        ValueError
            If the edges are said to be sorted by destination and are not.
        """
        if edges_are_dst_sorted and self.edge_row is not None:
            _refuse_claim()

    def describes(self, edge_index: Tensor) -> bool:
        """Return whether this is the layout of these edges. Waits for the device if the number of edges is right."""
        _check_form(edge_index)
        if edge_index.shape[1] != self.num_edges or edge_index.device != self.device:
            return False
        rows = edge_index.detach() if self.edge_row is None else edge_index.detach()[:, self.edge_row]
        return bool(((rows[0] == self.source) & (rows[1] == self.destination)).all())

    def to(self, device: torch.device | str) -> GraphLayout:
        """Return the layout on another device, itself if it is there."""
        device = torch.device(device)
        tensors = [tensor.to(device) for tensor in self.tensors]
        if tensors[0] is self.tensors[0]:
            return self
        return GraphLayout(self.num_nodes, self.num_edges, self.max_in_degree, self.max_out_degree, tensors)


def _check_form(edge_index: Tensor) -> None:
    integer = edge_index.dtype in (torch.int64, torch.int32)
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or not integer:
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)} and dtype {edge_index.dtype}. Allowed: [2, M] of int64 or "
            "int32, sources in row 0 and destinations in row 1. Transpose or cast it."
        )


def _check_edges(source: Tensor, destination: Tensor, sizes: tuple[int, int], claimed: bool) -> bool:
    """Check node numbers and the caller's claim; return whether the edges are sorted by destination."""
    if source.numel() == 0:
        return True
    increasing = (destination[1:] >= destination[:-1]).all().long()
    limits = torch.stack([source.min(), source.max(), destination.min(), destination.max(), increasing])
    *found, is_sorted = limits.tolist()
    if claimed and not is_sorted:
        _refuse_claim()
    for name, lowest, highest, size in (("source", *found[:2], sizes[0]), ("destination", *found[2:], sizes[1])):
        if lowest < 0 or highest >= size:
            raise ValueError(
                f"edge_index has {name} nodes {lowest} to {highest}, but there are {size}. Allowed: 0 to {size - 1}. "
                "Check num_nodes=(N_src, N_dst) and the direction of the edges."
            )
    return bool(is_sorted)


def _refuse_claim() -> NoReturn:
    raise ValueError(
        "edges_are_dst_sorted=True, but edge_index[1] is not ascending. Allowed: edges sorted by destination, or "
        "edges_are_dst_sorted=False. Sort the edges, or leave the flag out."
    )


def _offsets(ascending: Tensor, size: int) -> Tensor:
    """First position of every number in an ascending list, and its end: ``[size + 1]``."""
    return torch.searchsorted(ascending, torch.arange(size + 1, device=ascending.device))


def _largest(degrees: Tensor) -> Tensor:
    return degrees.max() if degrees.numel() else degrees.new_zeros(())


def _segments(offsets: Tensor, degrees: Tensor, max_degree: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut the sources with more than ``SEGMENT`` edges into segments: begins, ends, sources, offsets of sources."""
    if max_degree <= SEGMENT:
        empty = offsets.new_empty(0)
        return empty, empty, empty, empty
    hub = (degrees > SEGMENT).nonzero()[:, 0]
    counts = (degrees[hub] + SEGMENT - 1) // SEGMENT
    hub_offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(hub.shape[0], device=hub.device), counts)
    rank = torch.arange(owner.shape[0], device=hub.device) - hub_offsets[owner]
    begin = offsets[hub][owner] + rank * SEGMENT
    end = torch.minimum(begin + SEGMENT, offsets[hub + 1][owner])
    return begin, end, hub, hub_offsets
