# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The layout of a graph and its cache."""

import gc
import weakref

import pytest
import torch

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import cache
from anemoi.plugins.attention.models.graph import layout as layout_module
from anemoi.plugins.attention.models.graph import layout_of
from anemoi.plugins.attention.models.graph import memory
from anemoi.plugins.attention.models.graph.cache import RecentLayouts
from anemoi.plugins.attention.models.graph.memory import EdgeMemory

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


def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, no layout can be built."""
    monkeypatch.setattr(GraphLayout, "from_edge_index", None)


def test_layout_is_found_by_the_memory_of_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = EDGES.clone()
    layout = layout_of(edges, (4, 5))
    no_build(monkeypatch)
    monkeypatch.setattr(GraphLayout, "describes", None)
    assert layout_of(edges, (4, 5)) is layout
    # A view of the same numbers, as a sharded provider makes it at every forward.
    assert layout_of(edges[:, 0:], [4, 5]) is layout


@pytest.mark.parametrize("is_sorted", [False, True])
def test_layout_of_equal_edges_is_shared_while_somebody_holds_it(
    is_sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = EDGES[:, EDGES[1].argsort(stable=True)] if is_sorted else EDGES.clone()
    other = edges.clone()
    other[0, 0] = 3 - other[0, 0]
    layout, recent = layout_of(edges.clone(), (4, 5)), RecentLayouts()
    recent.keep(layout)
    assert layout_of(other, (4, 5)) is not layout
    assert layout_of(edges.clone(), (5, 5)) is not layout
    no_build(monkeypatch)
    assert layout_of(edges.clone(), (4, 5)) is layout
    with torch.inference_mode():
        assert layout_of(edges.clone(), (4, 5)) is layout


def test_recent_layouts_are_bounded() -> None:
    recent = RecentLayouts(2)
    layouts = [weakref.ref(layout_of(EDGES.clone(), (4, 5 + extra))) for extra in range(3)]
    for extra in (0, 1, 0, 2):
        recent.keep(layout_of(EDGES.clone(), (4, 5 + extra)))
    gc.collect()
    assert all(layout() is None for layout in layouts)
    alive = [layout for layout in cache._ALIVE if layout.num_nodes in {(4, 5), (4, 6), (4, 7)}]
    assert {layout.num_nodes for layout in alive} == {(4, 5), (4, 7)}


def test_layouts_notice_changes_of_the_edges() -> None:
    edges = EDGES.clone()
    layout = layout_of(edges, (4, 5))
    assert layout_of(edges, (5, 5)) is not layout
    assert layout_of(edges[:, 1:], (4, 5)).num_edges == 4
    before = len(cache._MEMORY)
    edges[1, 0] = 4
    changed = layout_of(edges, (4, 5))
    assert changed.destination.tolist() == [0, 0, 1, 3, 4]
    # What was known of the old numbers is gone.
    assert len(cache._MEMORY) <= before


@pytest.mark.parametrize("int32_max", [2**31 - 1, 4])
def test_layouts_die_with_their_edges(int32_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "_INT32_MAX", int32_max)
    edges = EDGES.clone()
    layout = weakref.ref(layout_of(edges, (4, 5)))
    view = edges[:]
    del edges
    gc.collect()
    assert layout() is layout_of(view, (4, 5))
    del view
    gc.collect()
    assert layout() is None


def test_results_of_one_graph_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_RESULTS", 2)
    known = EdgeMemory()
    for question in range(4):
        known.get(EDGES, question, lambda: 0)
    assert len(known) == 2


def test_a_result_that_was_changed_is_made_again() -> None:
    known, edges = EdgeMemory(), EDGES.clone()
    first = known.get(edges, "copy", edges.clone)
    assert known.get(edges, "copy", edges.clone) is first
    first[0, 0] = 7
    assert torch.equal(known.get(edges, "copy", edges.clone), EDGES)


def test_g53_flag_is_checked_for_known_edges() -> None:
    edges = EDGES.clone()
    layout_of(edges, (4, 5))
    with pytest.raises(ValueError, match="not ascending"):
        layout_of(edges, (4, 5), edges_are_dst_sorted=True)


def test_g53_flag_is_checked_before_the_numbers_of_the_nodes() -> None:
    with pytest.raises(ValueError, match="not ascending"):
        layout_of(EDGES.clone(), (4, 3), edges_are_dst_sorted=True)


def test_edges_of_inference_mode_are_compared_at_every_call() -> None:
    with torch.inference_mode():
        edges = EDGES.clone()
        first = layout_of(edges, (4, 5))
        edges[1, 0] = 4
        assert layout_of(edges, (4, 5)).destination.tolist() != first.destination.tolist()


def test_layouts_made_in_inference_mode_serve_gradients() -> None:
    with torch.inference_mode():
        layout = layout_of(EDGES, (4, 5))
    assert not any(tensor.is_inference() for tensor in layout.tensors)
