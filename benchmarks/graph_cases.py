# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graphs of the size and locality of Anemoi's encoder, processor and decoder, and inputs for them."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

GRAPHS = ("encoder", "decoder", "processor")
NUM_HEADS, HEAD_DIM, NUM_ATTRIBUTES = 16, 64, 11
PLAIN = ("query", "key", "value", "edges")
FACTORISED = ("query", "key", "value", "edge_attr", "weight", "bias")


def octahedral(latitudes: int) -> np.ndarray:
    """Nodes of an octahedral reduced grid with ``latitudes`` per hemisphere, north to south, as unit vectors."""
    rings = []
    for ring in range(2 * latitudes):
        count = 20 + 4 * min(ring, 2 * latitudes - 1 - ring)
        latitude = np.pi / 2 - (ring + 0.5) * np.pi / (2 * latitudes)
        longitude = np.arange(count) * 2 * np.pi / count
        sine = np.full(count, np.sin(latitude))
        rings.append(np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), sine], 1))
    return np.concatenate(rings)


def nearest(source: np.ndarray, destination: np.ndarray, count: int) -> np.ndarray:
    """Edges to each destination from its ``count`` nearest sources: ``[2, M]``."""
    _, neighbours = cKDTree(source).query(destination, k=count, workers=-1)
    return np.stack([neighbours.reshape(-1), np.repeat(np.arange(len(destination)), count)])


def build(name: str, hidden_latitudes: int, data_latitudes: int) -> tuple[Tensor, tuple[int, int]]:
    """Return ``edge_index`` sorted by destination, then source, and ``(N_src, N_dst)``."""
    hidden, data = octahedral(hidden_latitudes), octahedral(data_latitudes)
    if name == "decoder":
        edges, sizes = nearest(hidden, data, 3), (len(hidden), len(data))
    elif name == "encoder":
        edges, sizes = nearest(hidden, data, 3)[::-1], (len(data), len(hidden))
    else:
        # Eight neighbours and the node itself, and four coarse long-range ones.
        coarse = np.arange(0, len(hidden), 16)
        far = nearest(hidden[coarse], hidden, 4)
        edges = np.concatenate([nearest(hidden, hidden, 9), np.stack([coarse[far[0]], far[1]])], 1)
        sizes = (len(hidden), len(hidden))
    order = np.lexsort((edges[0], edges[1]))
    return torch.from_numpy(edges[:, order].copy()), sizes


def random_graph(single: bool, num_edges: int = 5000) -> tuple[Tensor, tuple[int, int]]:
    """A small graph with repeated edges, isolated nodes and, unless ``single``, a hub on either side."""
    generator = torch.Generator().manual_seed(int(single))
    num_src, num_dst = 300, 400
    if single:
        # At most three edges by destination as by source.
        destination = torch.arange(290)
        edges = [torch.stack([(destination * step + step) % 300, destination]) for step in (1, 7, 11)]
    else:
        edges = [torch.randint(280, (2, num_edges), generator=generator)]
        edges.append(torch.stack([torch.full((1500,), 5), torch.randint(380, (1500,), generator=generator)]))
        edges.append(torch.stack([torch.randint(280, (200,), generator=generator), torch.full((200,), 17)]))
    edge_index = torch.cat(edges, 1)
    return edge_index[:, edge_index[1].argsort(stable=True)], (num_src, num_dst)


def draw(
    edge_index: Tensor,
    sizes: tuple[int, int],
    dtype: torch.dtype,
    device: str,
    heads: int = NUM_HEADS,
    dim: int = HEAD_DIM,
    *,
    seed: int,
) -> dict[str, Tensor]:
    """Draw inputs from a normal distribution, named as the arguments of the public functions."""
    generator = torch.Generator(device).manual_seed(seed)
    num_edges, (num_src, num_dst) = edge_index.shape[1], sizes
    shapes = {
        "query": (num_dst, heads, dim),
        "key": (num_src, heads, dim),
        "value": (num_src, heads, dim),
        "edges": (num_edges, heads, dim),
        "edge_attr": (num_edges, NUM_ATTRIBUTES),
        "weight": (heads * dim, NUM_ATTRIBUTES),
        "bias": (heads * dim,),
        "d_out": (num_dst, heads, dim),
    }
    return {
        name: (
            torch.randn(shape, device=device, dtype=torch.float32, generator=generator)
            / (NUM_ATTRIBUTES**0.5 if name == "weight" else 1.0)
        ).to(dtype)
        for name, shape in shapes.items()
    }
