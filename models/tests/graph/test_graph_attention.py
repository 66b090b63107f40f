# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The public functions, their torch path, and the oracle itself."""

import math
from itertools import pairwise

import pytest
import torch
from graph_checks import FACTORISED
from graph_checks import PLAIN
from graph_checks import TORCH
from graph_checks import check
from graph_checks import draw
from graph_checks import oracle
from graph_checks import random_edges
from graph_checks import run
from graph_checks import with_gradients

from anemoi.plugins.attention.models.errors import UnknownBackend
from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised
from anemoi.plugins.attention.models.graph import torch_path
from anemoi.plugins.attention.models.graph.reference import reference_graph_attention

both = pytest.mark.parametrize("factorised", [False, True])


def test_oracle_by_hand() -> None:
    # Two edges into node 0 with scores (ln 2, 0), one into node 1, none into node 2; C = 4, so the scale is 1/2.
    query = torch.tensor([[2 * math.log(2.0), 0, 0, 0], [1.0, 1, 1, 1], [1.0, 1, 1, 1]], dtype=torch.float64)
    key = torch.tensor([[0.5, 0, 0, 0], [-1.0, 0, 0, 0]], dtype=torch.float64)
    value = torch.tensor([[3.0, 0, 0, 0], [0, 6.0, 0, 0]], dtype=torch.float64)
    edges = torch.tensor([[0.5, 0, 0, 0], [1.0, 0, 0, 0], [0, 0, 0, 1.0]], dtype=torch.float64)
    edge_index = torch.tensor([[0, 1, 1], [0, 0, 1]])
    out = reference_graph_attention(*(x.unsqueeze(1) for x in (query, key, value, edges)), edge_index)
    expected = torch.tensor([[2.0 / 3 * 3.5 + 1.0 / 3, 2.0, 0, 0], [0, 6.0, 0, 1.0], [0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(out[:, 0], expected)


def test_oracle_gradcheck() -> None:
    case = draw(random_edges(5, 6, 11), (5, 6), head_dim=3, dtype=torch.float64)
    tensors = [x.requires_grad_() for x in case.named(PLAIN)]
    assert torch.autograd.gradcheck(lambda *x: reference_graph_attention(*x, case.edge_index), tensors)


@both
def test_torch_path_gradcheck(factorised: bool) -> None:
    case = draw(random_edges(5, 6, 11), (5, 6), head_dim=3, dtype=torch.float64)
    layout = case.layout()
    function = graph_attention_factorised if factorised else graph_attention
    tensors = [x.requires_grad_() for x in case.named(FACTORISED if factorised else PLAIN)]
    assert torch.autograd.gradcheck(lambda *x: function(*x, layout), tensors)
    assert torch.autograd.gradgradcheck(lambda *x: function(*x, layout), tensors)


def test_matches_the_host_s_convolution() -> None:
    conv = pytest.importorskip("anemoi.models.layers.conv", reason="compares with anemoi-models")
    case = draw(random_edges(30, 40, 130), (30, 40))
    host = conv.GraphTransformerConv(out_channels=8)
    expected = with_gradients(
        lambda q, k, v, e: host(q, k, v, e, case.edge_index, case.num_nodes), case.named(PLAIN), case.tensors["d_out"]
    )
    for got, want in zip(run(case, factorised=False, backend="auto"), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("magnitude", [1.0, 8.0])
def test_torch_path_matches(factorised: bool, dtype: torch.dtype, magnitude: float) -> None:
    case = draw(random_edges(30, 40, 130), (30, 40), dtype=dtype, magnitude=magnitude)
    check(case, factorised=factorised, backend=TORCH, magnitude=magnitude**2)


@both
def test_factorised_equals_projected(factorised: bool) -> None:
    case = draw(random_edges(30, 40, 130), (30, 40), dtype=torch.float64)
    for got, want in zip(
        run(case, factorised=factorised, backend=TORCH),
        oracle(case, factorised=factorised, dtype=torch.float64),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_no_bias() -> None:
    case = draw(random_edges(8, 9, 30), (8, 9))
    query, key, value, attr, weight, bias = case.named(FACTORISED)
    layout = case.layout()
    without = graph_attention_factorised(query, key, value, attr, weight, None, layout)
    assert torch.equal(
        without, graph_attention_factorised(query, key, value, attr, weight, torch.zeros_like(bias), layout)
    )


def test_autocast_takes_the_dtype_of_value() -> None:
    case = draw(random_edges(8, 9, 30), (8, 9))
    layout = case.layout()
    query, key, value, attr, weight, bias = case.named(FACTORISED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = graph_attention_factorised(query, key, value.bfloat16(), attr, weight, bias, layout)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("query", lambda x: x[1:], "query has shape"),
        ("key", lambda x: x[1:], "key"),
        ("edges", lambda x: x[1:], "edges has shape"),
        ("query", lambda x: x.half(), "query has dtype"),
        ("edges", lambda x: x.to("meta"), "edges is on meta"),
        ("value", lambda x: x.flatten(1), "Allowed: "),
    ],
)
def test_wrong_inputs(name: str, change: object, message: str) -> None:
    case = draw(random_edges(8, 9, 30), (8, 9))
    tensors = case.tensors | {name: change(case.tensors[name])}
    with pytest.raises(ValueError, match=message):
        graph_attention(*[tensors[x] for x in PLAIN], case.layout())


def test_layout_on_another_device() -> None:
    case = draw(random_edges(8, 9, 30), (8, 9))
    with pytest.raises(ValueError, match="layout is on meta"):
        graph_attention(*case.named(PLAIN), case.layout().to("meta"))


def test_unknown_backend() -> None:
    case = draw(random_edges(8, 9, 30), (8, 9))
    with pytest.raises(UnknownBackend, match="triton_graph_attention"):
        graph_attention(*case.named(PLAIN), case.layout(), backend="triton")


@both
def test_g54_no_edges_at_all(factorised: bool) -> None:
    case = draw(torch.empty(2, 0, dtype=torch.long), (3, 4))
    for result in run(case, factorised=factorised, backend=TORCH):
        assert not result.any()
    layout = GraphLayout.from_edge_index(case.edge_index, (0, 0))
    empty = torch.zeros(0, 2, 8)
    assert graph_attention(empty, empty, empty, empty, layout).shape == (0, 2, 8)


@both
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("numbers", [64, 500])
def test_torch_path_in_blocks(factorised: bool, is_sorted: bool, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = draw(random_edges(30, 40, 130, is_sorted=is_sorted), (30, 40))
    names, function = (FACTORISED, graph_attention_factorised) if factorised else (PLAIN, graph_attention)
    expected = function(*case.named(names), case.layout())
    monkeypatch.setattr(torch_path, "_BLOCK_NUMBERS", numbers)
    torch.testing.assert_close(function(*case.named(names), case.layout()), expected)


def test_blocks_cover_every_edge_once_and_keep_hubs_whole() -> None:
    destination = torch.tensor([0] * 50 + [3] * 4 + [4] * 5 + [7] * 1)
    layout = GraphLayout.from_edge_index(torch.stack([torch.zeros_like(destination), destination]), (1, 9))
    blocks = torch_path._blocks(layout, 12)
    assert [part.nodes for part in blocks][:2] == [slice(0, 1), slice(1, 5)]
    for ranges, end in (([part.nodes for part in blocks], 9), ([part.edges for part in blocks], 60)):
        assert [ranges[0].start, ranges[-1].stop] == [0, end]
        assert all(left.stop == right.start for left, right in pairwise(ranges))
    for part in blocks:
        assert torch.equal(part.destination + part.nodes.start, destination[part.edges].int())


@both
def test_torch_path_sums_in_fp32_under_autocast(factorised: bool) -> None:
    case = draw(random_edges(30, 40, 130), (30, 40), dtype=torch.bfloat16)
    names, function = (FACTORISED, graph_attention_factorised) if factorised else (PLAIN, graph_attention)
    expected = function(*case.named(names), case.layout())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(function(*case.named(names), case.layout()), expected)
