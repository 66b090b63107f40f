# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Encoder, processor and decoder of the released anemoi-models on small random graphs."""

from typing import Any

import torch
from anemoi.models.distributed.shapes import BipartiteGraphShardInfo
from anemoi.models.distributed.shapes import GraphShardInfo
from anemoi.models.layers.graph_provider import StaticGraphProvider
from anemoi.models.layers.mapper import GraphTransformerBackwardMapper
from anemoi.models.layers.mapper import GraphTransformerForwardMapper
from anemoi.models.layers.processor import GraphTransformerProcessor
from torch import Tensor
from torch import nn
from torch_geometric.data import HeteroData

OURS, PYG = "triton_attention", "pyg"
NUM_DATA, NUM_HIDDEN, VARIABLES, CHANNELS = 45, 21, 5, 48


def random_graph(num_edges: int = 90, *, seed: int = 0) -> HeteroData:
    """Draw edges between data and hidden nodes; some nodes on either side stay isolated.

    Edges within the hidden nodes are symmetric, as halo exchange needs them.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(num_src: int, num_dst: int, number: int = num_edges) -> Tensor:
        return torch.stack([torch.randint(n - 2, (number,), generator=generator) for n in (num_src, num_dst)])

    half = draw(NUM_HIDDEN, NUM_HIDDEN, num_edges // 2)
    edges = {
        ("data", "hidden"): draw(NUM_DATA, NUM_HIDDEN),
        ("hidden", "hidden"): torch.cat([half, half.flip(0)], 1),
        ("hidden", "data"): draw(NUM_HIDDEN, NUM_DATA),
    }
    graph = HeteroData()
    for (source, destination), edge_index in edges.items():
        store = graph[source, "to", destination]
        store.edge_index = edge_index
        store.edge_length = torch.rand(edge_index.shape[1], 1, generator=generator)
        store.edge_dirs = torch.randn(edge_index.shape[1], 2, generator=generator)
    return graph


class GraphTransformer(nn.Module):
    """Encoder, processor and decoder, put together as ``AnemoiModelEncProcDec`` does it."""

    def __init__(
        self,
        backend: str = OURS,
        *,
        num_heads: int = 4,
        num_layers: int = 2,
        mapper_chunks: int = 1,
        shard_strategy: str = "edges",
        graph: HeteroData | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        graph = random_graph() if graph is None else graph
        sizes = {"data": NUM_DATA, "hidden": NUM_HIDDEN}
        self.graphs = nn.ModuleDict()
        for source, destination in (("data", "hidden"), ("hidden", "hidden"), ("hidden", "data")):
            self.graphs[f"{source}2{destination}"] = StaticGraphProvider(
                graph[source, "to", destination],
                ["edge_length", "edge_dirs"],
                sizes[source],
                sizes[destination],
                trainable_size=2,
            )
        common = {
            "num_channels": CHANNELS,
            "num_heads": num_heads,
            "mlp_hidden_ratio": 2,
            "edge_dim": 5,
            "layer_kernels": None,
            "shard_strategy": shard_strategy,
            "graph_attention_backend": backend,
            **options,
        }
        self.encoder = GraphTransformerForwardMapper(
            in_channels_src=VARIABLES, in_channels_dst=2, num_chunks=mapper_chunks, **common
        )
        self.processor = GraphTransformerProcessor(num_layers=num_layers, num_chunks=1, **common)
        self.decoder = GraphTransformerBackwardMapper(
            in_channels_src=CHANNELS,
            in_channels_dst=VARIABLES,
            out_channels_dst=VARIABLES,
            num_chunks=mapper_chunks,
            **common,
        )

    def forward(self, data: Tensor, hidden: Tensor, batch_size: int = 1, group: Any = None) -> Tensor:
        """Compute ``[batch * data, variables]``; each process of a group gets all nodes, and returns all."""
        edges = {
            name: graph.get_edges(batch_size=batch_size, model_comm_group=group) for name, graph in self.graphs.items()
        }
        attributes, edge_index, sizes = edges["data2hidden"]
        latent_data, latent = self.encoder(
            (data, hidden), batch_size, BipartiteGraphShardInfo(edges=sizes), attributes, edge_index, group, False
        )
        attributes, edge_index, sizes = edges["hidden2hidden"]
        shards = self._shards(latent, group)
        latent = self.processor(
            self._shard(latent, shards, group),
            batch_size,
            GraphShardInfo(nodes=shards, edges=sizes),
            attributes,
            edge_index,
            group,
        )
        attributes, edge_index, sizes = edges["hidden2data"]
        info = BipartiteGraphShardInfo(src_nodes=shards, edges=sizes)
        return self.decoder((latent, latent_data), batch_size, info, attributes, edge_index, group, False)

    @staticmethod
    def _shards(latent: Tensor, group: Any) -> list[int] | None:
        from anemoi.models.distributed.shapes import get_shard_sizes

        return None if group is None else get_shard_sizes(latent, 0, group)

    @staticmethod
    def _shard(latent: Tensor, sizes: list[int] | None, group: Any) -> Tensor:
        from anemoi.models.distributed.graph import shard_tensor

        return latent if group is None else shard_tensor(latent, 0, sizes, group)


def inputs(batch_size: int = 1, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Draw data ``[batch * data, variables]`` and hidden nodes ``[batch * hidden, 2]``."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch_size * NUM_DATA, VARIABLES, generator=generator),
        torch.randn(batch_size * NUM_HIDDEN, 2, generator=generator),
    )


def randomised(model: nn.Module, *, seed: int = 2) -> nn.Module:
    """Draw all parameters, trainable edges and norms included: none may be zero by its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.0 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def step(model: nn.Module, *arguments: Any, **options: Any) -> dict[str, Tensor]:
    """Return the output, and the gradient of every parameter and input, of one forward and backward."""
    leaves = [argument.clone().requires_grad_() for argument in arguments if isinstance(argument, Tensor)]
    out = model(*leaves, *arguments[len(leaves) :], **options)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    model.zero_grad()
    (out * weights.to(out.dtype)).float().sum().backward()
    results = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"out": out.detach(), **{f"input {i}": leaf.grad for i, leaf in enumerate(leaves)}, **results}
