# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Random graphs, and the comparison of graph attention with its oracle, forward and gradients."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from policy import assert_matches
from torch import Tensor

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised
from anemoi.plugins.attention.models.graph.functional import TORCH
from anemoi.plugins.attention.models.graph.functional import TRITON
from anemoi.plugins.attention.models.graph.reference import reference_graph_attention

PLAIN = ("query", "key", "value", "edges")
FACTORISED = ("query", "key", "value", "edge_attr", "weight", "bias")
__all__ = ["FACTORISED", "PLAIN", "TORCH", "TRITON"]


class Case(NamedTuple):
    """A graph with its inputs; ``tensors`` are named as the arguments of the public functions."""

    edge_index: Tensor
    num_nodes: tuple[int, int]
    tensors: dict[str, Tensor]

    def layout(self) -> GraphLayout:
        return GraphLayout.from_edge_index(self.edge_index, self.num_nodes)

    def named(self, names: tuple[str, ...]) -> list[Tensor]:
        return [self.tensors[name] for name in names]


def random_edges(num_src: int, num_dst: int, num_edges: int, *, seed: int = 0, is_sorted: bool = False) -> Tensor:
    """Draw edges, some of them repeated; of the last nodes on either side, a tenth stays isolated."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(max(1, num_src * 9 // 10), (num_edges,), generator=generator)
    destination = torch.randint(max(1, num_dst * 9 // 10), (num_edges,), generator=generator)
    edge_index = torch.stack([source, destination])
    return edge_index[:, destination.argsort(stable=True)] if is_sorted else edge_index


def draw(
    edge_index: Tensor,
    num_nodes: tuple[int, int],
    *,
    num_heads: int = 2,
    head_dim: int = 8,
    num_attributes: int = 3,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    magnitude: float = 1.0,
    seed: int = 0,
) -> Case:
    """Draw inputs from a normal distribution; ``magnitude`` is a factor on query and key."""
    generator = torch.Generator().manual_seed(seed)
    num_edges, channels = edge_index.shape[1], num_heads * head_dim
    shapes = {
        "query": (num_nodes[1], num_heads, head_dim),
        "key": (num_nodes[0], num_heads, head_dim),
        "value": (num_nodes[0], num_heads, head_dim),
        "edges": (num_edges, num_heads, head_dim),
        "edge_attr": (num_edges, num_attributes),
        "weight": (channels, num_attributes),
        "bias": (channels,),
        "d_out": (num_nodes[1], num_heads, head_dim),
    }
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    # As a linear layer starts, so that projected edges are of the size of the nodes.
    tensors["weight"] /= num_attributes**0.5
    tensors["query"] *= magnitude
    tensors["key"] *= magnitude
    tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    return Case(edge_index.to(device), num_nodes, tensors)


def with_gradients(function: Callable, tensors: list[Tensor], d_out: Tensor) -> list[Tensor]:
    """Return ``function(*tensors)`` and the gradients of all tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out.to(out.dtype))]


def reference_factorised(
    query: Tensor, key: Tensor, value: Tensor, attr: Tensor, weight: Tensor, bias: Tensor, edge_index: Tensor
) -> Tensor:
    """Project the edges, then call the oracle."""
    edges = torch.nn.functional.linear(attr, weight, bias).view(-1, *value.shape[1:])
    return reference_graph_attention(query, key, value, edges, edge_index)


def run(case: Case, *, factorised: bool, backend: str) -> list[Tensor]:
    """Return output and gradients of a public function."""
    layout, d_out = case.layout(), case.tensors["d_out"]
    if factorised:
        return with_gradients(
            lambda *x: graph_attention_factorised(*x, layout, backend=backend), case.named(FACTORISED), d_out
        )
    return with_gradients(lambda *x: graph_attention(*x, layout, backend=backend), case.named(PLAIN), d_out)


def oracle(case: Case, *, factorised: bool, dtype: torch.dtype) -> list[Tensor]:
    """Return output and gradients of the oracle, computed in ``dtype``."""
    function = reference_factorised if factorised else reference_graph_attention
    tensors = [tensor.to(dtype) for tensor in case.named(FACTORISED if factorised else PLAIN)]
    return with_gradients(lambda *x: function(*x, case.edge_index), tensors, case.tensors["d_out"])


def check(case: Case, *, factorised: bool = False, backend: str = TRITON, magnitude: float = 1.0) -> list[Tensor]:
    """Compare output and gradients with the oracle and return them."""
    got = run(case, factorised=factorised, backend=backend)
    expected = oracle(case, factorised=factorised, dtype=torch.float64)
    eager = oracle(case, factorised=factorised, dtype=case.tensors["query"].dtype)
    names = ["out", *(f"d_{name}" for name in (FACTORISED if factorised else PLAIN))]
    for name, *results in zip(names, got, expected, eager, strict=True):
        assert results[0].isfinite().all(), name
        assert_matches(*results, name, magnitude)
    return got
