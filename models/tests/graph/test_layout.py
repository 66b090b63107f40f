# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The layout of a graph and its cache."""

import gc

import pytest
import torch

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import cache
from anemoi.plugins.attention.models.graph import layout as layout_module
from anemoi.plugins.attention.models.graph import layout_of

EDGES = torch.tensor([[2, 0, 1, 0, 2], [1, 0, 1, 3, 0]])


def test_orders() -> None:
    layout = GraphLayout.from_edge_index(EDGES, (4, 5))
    offsets, source, destination, row, source_offsets, source_edge, source_destination = map(
        torch.Tensor.tolist, layout.tensors[:7]
    )
    assert (layout.num_nodes, layout.num_edges, layout.max_in_degree, layout.max_out_degree) == ((4, 5), 5, 2, 2)
    assert offsets == [0, 2, 4, 4, 5, 5]
    assert row == [1, 4, 0, 2, 3]
    assert source == [0, 2, 2, 1, 0]
    assert destination == [0, 0, 1, 1, 3]
    assert source_offsets == [0, 2, 3, 5, 5]
    assert source_edge == [0, 4, 3, 1, 2]
    assert source_destination == [0, 3, 1, 0, 1]
    assert all(tensor.dtype == torch.int32 for tensor in layout.tensors)


def test_sorted_edges_are_recognised() -> None:
    ascending = EDGES[:, EDGES[1].argsort(stable=True)]
    for claimed in (False, True):
        layout = GraphLayout.from_edge_index(ascending, (4, 5), edges_are_dst_sorted=claimed)
        assert layout.edge_row is None
        assert layout.source.tolist() == ascending[0].tolist()


def test_g53_shuffled_edges_flagged_as_sorted() -> None:
    with pytest.raises(ValueError, match="not ascending"):
        GraphLayout.from_edge_index(EDGES, (4, 5), edges_are_dst_sorted=True)


@pytest.mark.parametrize(
    ("edge_index", "num_nodes", "message"),
    [
        (EDGES, (2, 5), "source nodes 0 to 2, but there are 2"),
        (EDGES, (4, 3), "destination nodes 0 to 3, but there are 3"),
        (EDGES - 1, (4, 5), "source nodes -1 to 1"),
        (EDGES.T, (4, 5), r"shape \(5, 2\)"),
        (EDGES.float(), (4, 5), "float32"),
    ],
)
def test_wrong_edges(edge_index: torch.Tensor, num_nodes: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphLayout.from_edge_index(edge_index, num_nodes)


@pytest.mark.parametrize("num_nodes", [(0, 0), (3, 0), (0, 3), (3, 3)])
def test_g54_no_edge(num_nodes: tuple[int, int]) -> None:
    layout = GraphLayout.from_edge_index(torch.empty(2, 0, dtype=torch.long), num_nodes)
    assert layout.max_in_degree == layout.max_out_degree == 0
    assert layout.tensors[0].tolist() == [0] * (num_nodes[1] + 1)


def test_segments_of_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "SEGMENT", 4)
    source = torch.tensor([0] * 5 + [1] * 4 + [2] * 9)
    layout = GraphLayout.from_edge_index(torch.stack([source, torch.arange(18)]), (3, 18))
    begin, end, hub, hub_offsets = map(torch.Tensor.tolist, layout.tensors[7:])
    assert hub == [0, 2]
    assert hub_offsets == [0, 2, 5]
    assert begin == [0, 4, 9, 13, 17]
    assert end == [4, 5, 13, 17, 18]


def test_int64_beyond_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "_INT32_MAX", 4)
    assert all(tensor.dtype == torch.int64 for tensor in GraphLayout.from_edge_index(EDGES, (4, 5)).tensors)


def test_to_device_and_identity() -> None:
    layout = GraphLayout.from_edge_index(EDGES, 5)
    assert layout.to("cpu") is layout
    moved = layout.to("meta")
    assert moved.device.type == "meta"
    assert moved.num_nodes == (5, 5)
    assert len({layout, moved, layout}) == 2


def test_cache_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = EDGES.clone()
    layout = layout_of(edges, (4, 5))
    monkeypatch.setattr(GraphLayout, "from_edge_index", None)
    assert layout_of(edges, (4, 5)) is layout
    # A view of the same numbers, as a sharded provider makes it at every forward.
    assert layout_of(edges[:, 0:], [4, 5]) is layout


def test_cache_notices_changes() -> None:
    edges = EDGES.clone()
    layout = layout_of(edges, (4, 5))
    assert layout_of(edges, (5, 5)) is not layout
    assert layout_of(edges[:, 1:], (4, 5)).num_edges == 4
    before = len(cache._LAYOUTS)
    edges[1, 0] = 4
    changed = layout_of(edges, (4, 5))
    assert changed.destination.tolist() == [0, 0, 1, 3, 4]
    # What was known of the old numbers is gone.
    assert len(cache._LAYOUTS) <= before


def test_cache_lets_graphs_go() -> None:
    cache._LAYOUTS.clear()
    for _ in range(3):
        edges = EDGES.clone()
        layout_of(edges, (4, 5))
        del edges
        gc.collect()
    assert len(cache._LAYOUTS) == 1


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache._LAYOUTS.clear()
    monkeypatch.setattr(cache, "_MAX_ENTRIES", 2)
    kept = [EDGES.clone() for _ in range(4)]
    for edges in kept:
        layout_of(edges, (4, 5))
    assert len(cache._LAYOUTS) == 2


def test_cache_checks_the_flag() -> None:
    edges = EDGES.clone()
    layout_of(edges, (4, 5))
    with pytest.raises(ValueError, match="not ascending"):
        layout_of(edges, (4, 5), edges_are_dst_sorted=True)


def test_inference_tensors_are_not_cached() -> None:
    with torch.inference_mode():
        edges = EDGES.clone()
        first = layout_of(edges, (4, 5))
        edges[1, 0] = 4
        assert layout_of(edges, (4, 5)).destination.tolist() != first.destination.tolist()
