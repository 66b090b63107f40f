# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The implementations that ``graph_attention.py`` compares, and the oracle they are verified against.

With ``form`` "given", the edges come projected, ``[M, H, C]``. With "attributes", they come as ``[M, A]`` with weight
and bias of the edge projection, which counts as part of the attention; ours then never makes the projected edges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import graph_cases
import timing
import torch
from graph_cases import FACTORISED
from graph_cases import HEAD_DIM
from graph_cases import PLAIN
from torch import Tensor

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised
from anemoi.plugins.attention.models.graph.functional import TORCH
from anemoi.plugins.attention.models.graph.functional import TRITON

NAMES = {"given": PLAIN, "attributes": FACTORISED}
# Largest relative L2 error. In bf16, PyG sums gradients of keys in bf16.
TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4}
# Numbers of the largest intermediate of the oracle.
_CHUNK = 1 << 27


class Problem(NamedTuple):
    """A graph with its inputs on a device."""

    edge_index: Tensor
    sizes: tuple[int, int]
    layout: GraphLayout
    tensors: dict[str, Tensor]

    def inputs(self, form: str) -> list[Tensor]:
        """Return the tensors that get a gradient."""
        return [self.tensors[name] for name in NAMES[form]]


@cache
def graph(name: str, latitudes: tuple[int, int], device: str) -> tuple[Tensor, tuple[int, int]]:
    """Build the edges of a graph once."""
    edge_index, sizes = graph_cases.build(name, *latitudes)
    return edge_index.to(device), sizes


def prepare(name: str, dtype: str, latitudes: tuple[int, int], device: str, seed: int) -> Problem:
    """Draw the inputs for a graph and lay it out."""
    edge_index, sizes = graph(name, latitudes, device)
    tensors = graph_cases.draw(edge_index, sizes, getattr(torch, dtype), device, seed=seed)
    return Problem(edge_index, sizes, GraphLayout.from_edge_index(edge_index, sizes), tensors)


def projected(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Put the linear layer of the edges before an attention that takes projected edges."""

    def run(query: Tensor, key: Tensor, value: Tensor, attr: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        edges = torch.nn.functional.linear(attr, weight, bias).view(-1, *value.shape[1:])
        return attention(query, key, value, edges)

    return run


def ours(problem: Problem) -> Callable[..., Tensor]:
    """Ours with projected edges."""
    return lambda *tensors: graph_attention(*tensors, problem.layout, backend=TRITON)


def factorised(problem: Problem) -> Callable[..., Tensor]:
    """Ours with attributes."""
    return lambda *tensors: graph_attention_factorised(*tensors, problem.layout, backend=TRITON)


def released(problem: Problem) -> Callable[..., Tensor]:
    """The Triton kernel of the installed anemoi-models, without its sorting of the edges at every forward."""
    from anemoi.models.triton.gt import graph_transformer_attention_conv
    from anemoi.models.triton.utils import edge_index_to_csc

    csc, _, reverse = edge_index_to_csc(problem.edge_index, problem.sizes, reverse=True, edges_are_dst_sorted=True)
    return lambda *tensors: graph_transformer_attention_conv(*tensors, csc, reverse)


def pyg(problem: Problem) -> Callable[..., Tensor]:
    """The message passing of the installed anemoi-models."""
    from anemoi.models.layers.conv import GraphTransformerConv

    conv = GraphTransformerConv(out_channels=HEAD_DIM)
    return lambda *tensors: conv(*tensors, problem.edge_index, problem.sizes)


def implementation(name: str, form: str, problem: Problem) -> Callable[..., Tensor]:
    """Return one implementation as a function of the inputs of ``form``."""
    if name == "ours" and form == "attributes":
        return factorised(problem)
    function = {"ours": ours, "projected": ours, "released": released, "pyg": pyg}[name](problem)
    return projected(function) if form == "attributes" else function


def layout_ms(name: str, problem: Problem, repetitions: int) -> dict[str, float]:
    """Time what an implementation makes of the edges: ours once for a graph, the released kernel at every forward."""
    if name == "pyg":
        return {}
    if name == "released":
        from anemoi.models.triton.utils import edge_index_to_csc

        make = lambda: edge_index_to_csc(  # noqa: E731
            problem.edge_index, problem.sizes, reverse=True, edges_are_dst_sorted=True
        )
    else:
        make = lambda: GraphLayout.from_edge_index(problem.edge_index, problem.sizes)  # noqa: E731
    return {"layout_ms": timing.percentiles(make, repetitions)["p50"]}


def exact(form: str, problem: Problem) -> list[Tensor]:
    """Return output and gradients in float64, some destinations at a time, whose edges follow each other."""
    names = NAMES[form]
    source, destination = problem.edge_index
    widest = problem.tensors["query"][0].numel()
    offsets = torch.searchsorted(destination, torch.arange(problem.sizes[1] + 1, device=destination.device)).tolist()
    results = [torch.zeros_like(problem.tensors["d_out"], dtype=torch.float64)]
    results += [torch.zeros_like(tensor, dtype=torch.float64) for tensor in problem.inputs(form)]
    step = max(1, problem.sizes[1] * _CHUNK // (max(1, len(source)) * widest))
    for first in range(0, problem.sizes[1], step):
        nodes = slice(first, min(first + step, problem.sizes[1]))
        edges = slice(offsets[nodes.start], offsets[nodes.stop])
        used, mine = source[edges].unique(return_inverse=True)
        part = torch.stack([mine, destination[edges] - nodes.start])
        rows = {"query": nodes, "key": used, "value": used, "edges": edges, "edge_attr": edges}
        inputs = [problem.tensors[name][rows.get(name, ...)].double() for name in names]
        layout = GraphLayout.from_edge_index(part, (len(used), nodes.stop - nodes.start))
        function = graph_attention if form == "given" else graph_attention_factorised
        run = lambda *x, f=function, g=layout: f(*x, g, backend=TORCH)  # noqa: E731
        out, *grads = timing.gradients(run, inputs, problem.tensors["d_out"][nodes].double())
        results[0][nodes] = out
        for name, total, gradient in zip(names, results[1:], grads, strict=True):
            total[rows.get(name, ...)] += gradient
    return results


def measure(
    name: str, form: str, problem: Problem, expected: list[Tensor], dtype: str, repetitions: int
) -> dict[str, object]:
    """Verify one implementation, take its peak memory, and time it."""
    labels = ("out", *(f"d_{tensor}" for tensor in NAMES[form]))
    errors = lambda results: {  # noqa: E731
        label: timing.relative(a, b) for label, a, b in zip(labels, results, expected, strict=True)
    }
    function = implementation(name, form, problem)
    inputs, d_out = problem.inputs(form), problem.tensors["d_out"]
    row = timing.measure(function, inputs, d_out, errors, TOLERANCE[dtype], repetitions)
    return row if "skipped" in row else row | layout_ms(name, problem, repetitions)
