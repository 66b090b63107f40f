# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The graph-attention kernels against the oracle: sizes, degrees, dtypes, sharp softmax, hubs."""

import pytest
import torch
from graph_checks import FACTORISED
from graph_checks import PLAIN
from graph_checks import TORCH
from graph_checks import TRITON
from graph_checks import check
from graph_checks import draw
from graph_checks import random_edges
from graph_checks import run

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import layout as layout_module

both = pytest.mark.parametrize("factorised", [False, True])


def supported(dtype: torch.dtype, device: torch.device, factorised: bool) -> None:
    if device.type == "cpu" and dtype == torch.bfloat16 and factorised:
        pytest.skip("Triton's interpreter multiplies matrices of the bit patterns of bf16")


def few_edges(num_src: int, num_dst: int) -> torch.Tensor:
    """Three edges for each destination: every tile is a single step."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(num_src, (3 * num_dst,), generator=generator)
    return torch.stack([source, torch.arange(num_dst).repeat_interleave(3)])


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1.0, 8.0])
def test_matches(device: torch.device, factorised: bool, dtype: torch.dtype, magnitude: float) -> None:
    supported(dtype, device, factorised)
    # Several tiles by destination, the last one partly filled.
    case = draw(random_edges(30, 40, 150), (30, 40), head_dim=24, dtype=dtype, device=device, magnitude=magnitude)
    check(case, factorised=factorised, magnitude=magnitude**2)


@both
@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 1), (6, 6), (3, 16), (2, 24), (16, 64), (1, 128), (2, 200)])
def test_g56_any_h_and_c(device: torch.device, factorised: bool, num_heads: int, head_dim: int) -> None:
    edge_index = random_edges(8, 9, 30)
    check(draw(edge_index, (8, 9), num_heads=num_heads, head_dim=head_dim, device=device), factorised=factorised)


@pytest.mark.parametrize("num_attributes", [1, 11, 15, 16, 31, 40])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_any_number_of_attributes(device: torch.device, num_attributes: int, is_sorted: bool) -> None:
    edge_index = random_edges(12, 14, 60, is_sorted=is_sorted)
    check(draw(edge_index, (12, 14), num_attributes=num_attributes, device=device), factorised=True)


@both
def test_single_step(device: torch.device, factorised: bool) -> None:
    check(draw(few_edges(20, 70), (20, 70), device=device), factorised=factorised)


@both
def test_several_tiles_per_program(device: torch.device, factorised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention import configurations

    monkeypatch.setattr(configurations, "_FACTORISED_PROGRAMS", 4)
    monkeypatch.setattr(configurations, "_TILE", 256)
    assert configurations.groups(5, 2, single=False, accumulates=True) == 3
    check(draw(random_edges(20, 70, 150), (20, 70), device=device), factorised=factorised)


@both
def test_single_step_by_source(device: torch.device, factorised: bool) -> None:
    edge_index = few_edges(20, 70).flip(0)
    check(draw(edge_index, (70, 20), device=device), factorised=factorised)


@both
@pytest.mark.parametrize("num_nodes", [(1, 1), (5, 5), (5, 0), (0, 5), (0, 0)])
def test_g54_no_edge_at_all(device: torch.device, factorised: bool, num_nodes: tuple[int, int]) -> None:
    case = draw(torch.empty(2, 0, dtype=torch.long), num_nodes, device=device)
    for result in run(case, factorised=factorised, backend=TRITON):
        assert not result.any()


@both
def test_g54_isolated_nodes(device: torch.device, factorised: bool) -> None:
    edge_index = torch.tensor([[2, 2, 4], [1, 3, 3]])
    out, d_query, d_key, d_value, *_ = check(draw(edge_index, (6, 40), device=device), factorised=factorised)
    for tensor, used in ((out, [1, 3]), (d_query, [3]), (d_key, [2, 4]), (d_value, [2, 4])):
        rows = tensor.flatten(1).abs().amax(1) > 1e-6
        assert rows.nonzero()[:, 0].tolist() == used


@both
def test_g56_nan_behind_the_buffers(device: torch.device, factorised: bool) -> None:
    case = draw(random_edges(12, 14, 60), (12, 14), num_heads=3, head_dim=6, device=device)
    expected = run(case, factorised=factorised, backend=TRITON)

    def embed(tensor: torch.Tensor) -> torch.Tensor:
        padded = torch.full((tensor.numel() + 128,), torch.nan, device=device)
        padded[64:-64] = tensor.flatten()
        return padded[64:-64].view(tensor.shape)

    surrounded = case._replace(tensors={name: embed(tensor) for name, tensor in case.tensors.items()})
    for got, want in zip(run(surrounded, factorised=factorised, backend=TRITON), expected, strict=True):
        assert torch.equal(got, want)


def test_nan_in_a_neighbour_stays_there(device: torch.device) -> None:
    case = draw(few_edges(20, 30), (20, 30), device=device)
    clean = run(case, factorised=False, backend=TRITON)
    case.tensors["query"][7, 0] = torch.nan
    got = run(case, factorised=False, backend=TRITON)
    for index in (0, 1):
        different = (got[index] != clean[index]).flatten(2).any(-1)
        assert different.nonzero().tolist() == [[7, 0]]


@both
@pytest.mark.parametrize("scale", [1e3, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_g58_sharp_softmax_on_a_star(device: torch.device, factorised: bool, scale: float, dtype: torch.dtype) -> None:
    supported(dtype, device, factorised)
    # Leaves 1 to 20 into the centre, whose softmax has one winner; the centre into every leaf: weight 1.
    leaves = torch.arange(1, 21)
    edge_index = torch.cat(
        [torch.stack([leaves, torch.zeros(20).long()]), torch.stack([torch.zeros(20).long(), leaves])], 1
    )
    case = draw(edge_index, (21, 21), head_dim=64, dtype=dtype, device=device)
    for name in ("query", "key", "value"):
        case.tensors[name] *= scale
    out, d_query, d_key, d_value, *_ = run(case, factorised=factorised, backend=TRITON)
    assert out.isfinite().all()
    # All weights are 0 or 1, so that query and key have no influence.
    assert d_query.abs().max() < 1e-3 * d_value.abs().max()
    assert d_key.abs().max() < 1e-3 * d_value.abs().max()


@both
def test_g59_repeated_edges(device: torch.device, factorised: bool) -> None:
    edge_index = torch.tensor([[3, 3, 3, 1, 3, 1, 0], [2, 2, 0, 2, 2, 2, 2]])
    check(draw(edge_index, (4, 5), device=device), factorised=factorised)


@both
def test_g59_hubs(device: torch.device, factorised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention import launch

    for module in (layout_module, launch):
        monkeypatch.setattr(module, "SEGMENT", 8)
    # Source 2 feeds all, twice; destination 1 hears from all.
    everyone = torch.arange(30)
    edges = [torch.stack([torch.full((30,), 2), everyone])] * 2 + [torch.stack([everyone, torch.ones(30).long()])]
    case = draw(torch.cat([*edges, random_edges(30, 30, 50)], 1), (30, 30), device=device)
    assert case.layout().tensors[9].tolist() == [2]
    check(case, factorised=factorised)


@pytest.mark.gpu
@both
def test_g59_one_source_to_100k_destinations(factorised: bool) -> None:
    edge_index = torch.stack([torch.zeros(100_000).long(), torch.arange(100_000)])
    case = draw(edge_index, (3, 100_000), device="cuda")
    for got, want in zip(
        run(case, factorised=factorised, backend=TRITON), run(case, factorised=factorised, backend=TORCH), strict=True
    ):
        assert (got - want).norm() <= 1e-4 * want.norm() + 1e-3


@both
def test_bitwise_equal_runs(device: torch.device, factorised: bool) -> None:
    case = draw(random_edges(20, 20, 100), (20, 20), device=device)
    runs = [run(case, factorised=factorised, backend=TRITON) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_g60_chunks(device: torch.device, num_chunks: int) -> None:
    # Chunks of destinations, as the host cuts them: each call sees all nodes and some of the edges.
    case = draw(random_edges(20, 30, 90, is_sorted=True), (20, 30), dtype=torch.float16, device=device)
    query, key, value, edges = case.named(PLAIN)
    whole = graph_attention(query, key, value, edges, case.layout(), backend=TRITON)
    total = torch.zeros_like(whole)
    for chunk in torch.arange(30, device=device).tensor_split(num_chunks):
        mine = torch.isin(case.edge_index[1], chunk)
        layout = GraphLayout.from_edge_index(case.edge_index[:, mine], (20, 30))
        total += graph_attention(query, key, value, edges[mine], layout, backend=TRITON)
    assert total.dtype == torch.float16
    assert torch.equal(total, whole)


@both
def test_g61_two_samples(device: torch.device, factorised: bool) -> None:
    one = draw(random_edges(20, 30, 90), (20, 30), device=device)
    other = draw(random_edges(20, 30, 90), (20, 30), device=device, seed=1)
    shared = {name: one.tensors[name] for name in ("weight", "bias")}
    other = other._replace(tensors=other.tensors | shared)
    edge_index = torch.cat([one.edge_index, one.edge_index + torch.tensor([[20], [30]], device=device)], 1)
    tensors = {name: torch.cat([one.tensors[name], other.tensors[name]]) for name in one.tensors} | shared
    out, *gradients = run(
        one._replace(edge_index=edge_index, num_nodes=(40, 60), tensors=tensors), factorised=factorised, backend=TRITON
    )
    parts = [run(case, factorised=factorised, backend=TRITON) for case in (one, other)]
    names = ["out", *(FACTORISED if factorised else PLAIN)]
    for name, whole, first, second in zip(names, [out, *gradients], *parts, strict=True):
        want = first + second if name in shared else torch.cat([first, second])
        torch.testing.assert_close(whole, want, rtol=1e-5, atol=1e-5)


@both
def test_int64_layout(device: torch.device, factorised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "_INT32_MAX", 4)
    check(draw(random_edges(12, 14, 60), (12, 14), device=device), factorised=factorised)


@pytest.mark.gpu
def test_more_than_2_to_31_numbers_of_edges() -> None:
    num_dst, num_heads, head_dim = 700_000, 16, 64
    edge_index = few_edges(100, num_dst).cuda()
    layout = GraphLayout.from_edge_index(edge_index, (100, num_dst))
    assert layout.num_edges * num_heads * head_dim > 2**31
    tensors = [torch.randn(n, num_heads, head_dim, device="cuda", dtype=torch.bfloat16) for n in (num_dst, 100, 100)]
    edges = torch.randn(layout.num_edges, num_heads, head_dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
    out = graph_attention(*tensors, edges, layout)
    out.backward(tensors[0])
    last = slice(-100, None)
    sub = GraphLayout.from_edge_index(
        torch.stack([edge_index[0, -300:], edge_index[1, -300:] - num_dst + 100]), (100, 100)
    )
    leaf = edges[-300:].detach().requires_grad_()
    expected = graph_attention(tensors[0][last], *tensors[1:], leaf, sub)
    expected.backward(tensors[0][last])
    assert torch.equal(out[last], expected)
    assert torch.equal(edges.grad[-300:], leaf.grad)
