# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The shipped graphs, built by anemoi-graphs."""

from pathlib import Path

import pytest
import torch
from anemoi.graphs.create import GraphCreator

from anemoi.plugins.attention.graphs import graph_names
from anemoi.plugins.attention.graphs import load_graph_config

ENCODER = ("data", "to", "hidden")
DECODER = ("hidden", "to", "data")


@pytest.fixture(scope="module", params=["attention", "attention_blizzard"])
def graph(request: pytest.FixtureRequest, blizzard_dataset: Path):
    built = GraphCreator(config=load_graph_config(request.param, blizzard_dataset)).create()
    return request.param, built


def test_counts(graph):
    name, built = graph
    assert built["data"].num_nodes == 964
    assert built["hidden"].num_nodes == 579
    if name == "attention_blizzard":
        # Nine neighbours a hidden node, four a data node.
        assert built[ENCODER].num_edges == 9 * 579
        assert built[DECODER].num_edges == 4 * 964
    assert built[ENCODER].num_edges == torch.unique(built[ENCODER].edge_index, dim=1).shape[1]


def test_every_node_is_reached(graph):
    _, built = graph
    source, target = built[ENCODER].edge_index
    assert source.unique().numel() == 964
    assert target.unique().numel() == 579
    assert built[DECODER].edge_index[1].unique().numel() == 964


def test_attributes_are_finite(graph):
    _, built = graph
    assert torch.isfinite(built["data"].area_weight).all()
    for edges in (ENCODER, DECODER):
        assert torch.isfinite(built[edges].edge_length).all()
        assert torch.isfinite(built[edges].edge_dirs).all()


def test_hidden_nodes_that_follow_each_other_are_close(graph):
    """A window of attention is a stretch of the sequence: it has to be a patch of the globe."""
    _, built = graph
    latitudes, longitudes = built["hidden"].x.unbind(dim=1)
    points = torch.stack([latitudes.cos() * longitudes.cos(), latitudes.cos() * longitudes.sin(), latitudes.sin()])
    steps = torch.rad2deg(2.0 * torch.asin((points[:, 1:] - points[:, :-1]).norm(dim=0) / 2.0))
    assert steps.median() < 2.5


def test_names():
    assert graph_names() == ["attention", "attention_blizzard"]
    with pytest.raises(ValueError, match=r"'atention' is no shipped graph\. Allowed: attention, attention_blizzard"):
        load_graph_config("atention", "any.zarr")
