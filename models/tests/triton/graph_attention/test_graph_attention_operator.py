# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The graph-attention operators inside torch: layouts, compilation, checkpointing, which gradients are computed."""

import pytest
import torch
from graph_checks import FACTORISED
from graph_checks import PLAIN
from graph_checks import TRITON
from graph_checks import Case
from graph_checks import draw
from graph_checks import random_edges
from graph_checks import run
from graph_checks import with_gradients
from torch.utils.checkpoint import checkpoint

from anemoi.plugins.attention.models.errors import UnsupportedProblem
from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised

both = pytest.mark.parametrize("factorised", [False, True])


def small(device: torch.device, num_dst: int = 14) -> Case:
    return draw(random_edges(12, num_dst, 60), (12, num_dst), device=device)


def call(factorised: bool, layout: GraphLayout, *tensors: torch.Tensor) -> torch.Tensor:
    function = graph_attention_factorised if factorised else graph_attention
    return function(*tensors, layout, backend=TRITON)


def inputs(case: Case, factorised: bool) -> list[torch.Tensor]:
    return case.named(FACTORISED if factorised else PLAIN)


@both
def test_opcheck(device: torch.device, factorised: bool) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention import op

    case = small(device)
    layout = case.layout()
    operator = op._factorised_forward if factorised else op._graph_attention_forward
    tensors = [x.requires_grad_() for x in inputs(case, factorised)]
    torch.library.opcheck(operator, (*tensors, layout.tensors, layout.max_in_degree, layout.max_out_degree, 0.25))


@both
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(device: torch.device, factorised: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(
        lambda layout, *x: call(factorised, layout, *x) * 2.0, fullgraph=True, dynamic=dynamic, backend=backend
    )
    for num_dst in (14, 15):
        case = small(device, num_dst)
        layout, d_out = case.layout(), case.tensors["d_out"]
        got = with_gradients(lambda *x, g=layout: compiled(g, *x), inputs(case, factorised), d_out)
        want = with_gradients(lambda *x, g=layout: call(factorised, g, *x) * 2.0, inputs(case, factorised), d_out)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@both
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(device: torch.device, factorised: bool, use_reentrant: bool) -> None:
    case = small(device)
    layout, d_out = case.layout(), case.tensors["d_out"]
    results = []
    for wrap in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=use_reentrant)):
        leaves = [x.detach().requires_grad_() for x in inputs(case, factorised)]
        out = wrap(lambda *x: call(factorised, layout, *x), *leaves)
        out.backward(d_out)
        results.append([out, *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@both
def test_rows_at_a_distance_are_read_in_place(device: torch.device, factorised: bool) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention.launch import readable

    case = small(device)
    expected = run(case, factorised=factorised, backend=TRITON)
    # Key and value from one projection; a query whose heads are far apart, which is copied.
    joint = torch.cat([case.tensors["key"], case.tensors["value"]], 1)
    key, value = joint.chunk(2, 1)
    query = case.tensors["query"].transpose(0, 1).contiguous().transpose(0, 1)
    d_out = case.tensors["d_out"][:1, :1, :1].expand_as(query)
    assert readable(key) is key
    assert readable(value) is value
    assert readable(query) is not query
    other = case._replace(tensors=case.tensors | {"query": query, "key": key, "value": value})
    assert all(
        torch.equal(a, b) for a, b in zip(run(other, factorised=factorised, backend=TRITON), expected, strict=True)
    )
    dense = case._replace(tensors=case.tensors | {"d_out": d_out.contiguous()})
    expanded = case._replace(tensors=case.tensors | {"d_out": d_out})
    pairs = [run(x, factorised=factorised, backend=TRITON) for x in (dense, expanded)]
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


@both
def test_unwanted_gradients_of_edges_are_not_computed(
    device: torch.device, factorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention import launch

    case = small(device)
    *_, expected = [None, *run(case, factorised=factorised, backend=TRITON)[1:2]]
    tensors = [x.detach() for x in inputs(case, factorised)]
    tensors[0].requires_grad_()
    seen = []
    original = launch.backward_destination_call
    monkeypatch.setattr(
        launch, "backward_destination_call", lambda *x: seen.append(original(*x).constants["D_EDGES"]) or original(*x)
    )
    call(factorised, case.layout(), *tensors).backward(case.tensors["d_out"])
    assert torch.equal(tensors[0].grad, expected)
    assert seen == [False]


def test_refusals(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from anemoi.plugins.attention.models.triton.graph_attention import op

    case = draw(random_edges(4, 4, 8), (4, 4), dtype=torch.float64, device=device)
    with pytest.raises(UnsupportedProblem, match=r"dtype=float64 \(one of float16, bfloat16, float32\)"):
        graph_attention(*case.named(PLAIN), case.layout(), backend=TRITON)
    monkeypatch.setattr(op, "_INTERPRETED", False)
    assert op.unsupported_reasons(torch.zeros(4, 2, 200), 40) == [
        "device=cpu (needs cuda)",
        "head_dim=200 (at most 128 for attributes)",
        "40 edge attributes (1 to 31)",
    ]


@both
def test_one_compilation_for_all_sizes(device: torch.device, factorised: bool) -> None:
    """Sizes are no constants of the kernels: five numbers of nodes and edges give one set of constants."""
    from anemoi.plugins.attention.models.triton.graph_attention import launch
    from anemoi.plugins.attention.models.triton.graph_attention.tiles import RUN_TIME

    seen = set()
    for size in (20, 31, 48, 64, 97):
        case = draw(random_edges(size, size, 8 * size), (size, size), device=device)
        layout = case.layout()
        query, key, value, rows, *weights = inputs(case, factorised)
        options = launch.Options(layout.max_in_degree, layout.max_out_degree, 0.25)
        made = launch.forward_call(
            query, key, value, launch.Edges(rows, *weights), query, launch.Graph(*layout.tensors), options
        )
        fixed = {name: x for name, x in made.arguments.items() if isinstance(x, int) and name not in RUN_TIME}
        seen.add((*fixed.items(), *made.constants.items(), *made.launch_options.items()))
    assert len(seen) == 1


@pytest.mark.gpu
@both
def test_cuda_graph(factorised: bool) -> None:
    case = draw(random_edges(300, 400, 3000), (300, 400), head_dim=64, dtype=torch.bfloat16, device="cuda")
    layout = case.layout()

    def step() -> list[torch.Tensor]:
        return with_gradients(lambda *x: call(factorised, layout, *x), inputs(case, factorised), case.tensors["d_out"])

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for result in got:
        result.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    for result in run(small(torch.device("cuda:1")), factorised=True, backend=TRITON):
        assert result.device.index == 1
