# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Attention layers and a small model, made of the installed release of anemoi-models.

The constructors and calls of the releases differ in a few arguments; each gets those that it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from anemoi.models.layers import attention as host
from anemoi.models.layers import block
from anemoi.models.layers import processor
from torch import Tensor
from torch import nn

POINTS, CHANNELS, HEADS, WINDOW = 48, 32, 4, 5
SDPA = "scaled_dot_product_attention"


def make(factory: Callable[..., nn.Module], **wanted: Any) -> nn.Module | None:
    """Build a layer with what this release's constructor takes; None if it lacks an option that is asked for.

    Options common to all that a release does not know (kernels, names of backends) are left out.
    """
    common = {"attention_implementation": SDPA, "graph_attention_backend": "pyg", "layer_kernels": _kernels()}
    known = inspect.signature(factory.__init__).parameters
    if any(name not in known for name in wanted):
        return None
    return factory(**{**{name: value for name, value in common.items() if name in known}, **wanted}).eval()


def _kernels() -> Any:
    """Return the factories of linear layers and norms, as a model hands them to its layers; none before 0.4."""
    try:
        from anemoi.models.layers.utils import load_layer_kernels
    except ImportError:
        return None
    kernels = load_layer_kernels({})
    if all(callable(kernel) for kernel in kernels.values()):
        return kernels
    # Up to 0.6, Hydra makes the factories when it makes the layer.
    from hydra.utils import instantiate

    return {name: instantiate(kernel) for name, kernel in kernels.items()}


def make_layers() -> dict[str, nn.Module]:
    """Build the attention layers that this release has, each with its options, in fp32."""
    torch.manual_seed(1996)
    sizes = {"num_heads": HEADS, "embed_dim": CHANNELS}
    graph = {"in_channels": CHANNELS, "hidden_dim": CHANNELS, "out_channels": CHANNELS, "edge_dim": 3}
    if "num_chunks" in inspect.signature(block.GraphTransformerProcessorBlock.__init__).parameters:
        graph["num_chunks"] = 1
    layers = {
        "self": make(host.MultiHeadSelfAttention, **sizes),
        "self, window": make(host.MultiHeadSelfAttention, **sizes, window_size=WINDOW),
        "self, window, qk_norm": make(host.MultiHeadSelfAttention, **sizes, window_size=WINDOW, qk_norm=True),
        "self, softcap": make(host.MultiHeadSelfAttention, **sizes, softcap=0.5),
        "self, ALiBi": make(host.MultiHeadSelfAttention, **sizes, use_alibi_slopes=True),
        "graph": make(block.GraphTransformerProcessorBlock, num_heads=HEADS, **graph),
    }
    if hasattr(host, "MultiHeadCrossAttention"):
        layers["cross"] = make(_with_signature(host.MultiHeadCrossAttention), **sizes)
    return {name: layer for name, layer in layers.items() if layer is not None}


def _with_signature(cross: type[nn.Module]) -> Any:
    # Its own constructor takes anything and hands it on.
    def factory(**options: Any) -> nn.Module:
        return cross(**options)

    factory.__init__ = host.MultiHeadSelfAttention.__init__
    return factory


def call(layer: nn.Module, x: Tensor) -> Tensor:
    """Call a layer or a processor with points ``[N, C]``, alone on one process."""
    edge_index = torch.stack([torch.arange(POINTS).repeat(3), (torch.arange(3 * POINTS) * 7 + 1) % POINTS])
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    known = inspect.signature(layer.forward).parameters
    cross = hasattr(host, "MultiHeadCrossAttention") and isinstance(layer, host.MultiHeadCrossAttention)
    shards = _shards(known, cross, POINTS)
    graph = {
        "edge_attr": torch.linspace(-1, 1, 3 * edge_index.shape[1]).reshape(-1, 3),
        "edge_index": edge_index,
        "size": POINTS if hasattr(host, "MultiHeadCrossAttention") else (POINTS, POINTS),
    }
    offered = {"batch_size": 1, **shards}
    if isinstance(layer, block.GraphTransformerProcessorBlock):
        offered |= graph
    with torch.no_grad():
        out = layer((x, x[::2]) if cross else x, **{name: value for name, value in offered.items() if name in known})
    return out[0] if isinstance(out, tuple) else out


def _shards(known: Any, cross: bool, points: int) -> dict[str, Any]:
    """Return how the points are spread over processes (they are not), under all the names it has had."""
    if "shard_info" not in known and "grid_shard_sizes" not in known:
        shapes = [[points, CHANNELS]]
        both = (shapes, [[points // 2, CHANNELS]])
        return {"shapes": both if cross else (shapes, shapes, shapes), "shard_shapes": (shapes, shapes)}
    from anemoi.models.distributed.shapes import BipartiteGraphShardInfo
    from anemoi.models.distributed.shapes import GraphShardInfo

    info = GraphShardInfo(nodes=[points])
    if cross:
        info = BipartiteGraphShardInfo(src_nodes=[points], dst_nodes=[points // 2])
    return {"shard_info": info, "grid_shard_sizes": info}


class ForecastModel(nn.Module):
    """A model that anemoi-inference can run: the release's transformer processor between two linear layers.

    Parameters
    ----------
    inputs, outputs : int
        Variables of the input, and of the output.
    steps : int
        Time steps of the input.
    """

    def __init__(self, inputs: int, outputs: int, steps: int) -> None:
        super().__init__()
        torch.manual_seed(1996)
        self.steps = steps
        # As in the models of anemoi, points have features of their own.
        self.points = nn.Parameter(torch.randn(POINTS, CHANNELS))
        self.encoder = nn.Linear(steps * inputs, CHANNELS)
        wanted = {
            "num_layers": 2,
            "num_channels": CHANNELS,
            "num_chunks": 1,
            "num_heads": HEADS,
            "mlp_hidden_ratio": 2,
            "window_size": WINDOW,
        }
        if hasattr(host, "MultiHeadCrossAttention"):
            # From 0.7, a processor makes the factories itself.
            wanted["layer_kernels"] = None
        self.processor = make(processor.TransformerProcessor, **wanted)
        self.decoder = nn.Linear(CHANNELS, outputs)

    def predict_step(self, batch: Tensor, **_: Any) -> Tensor:
        """Compute ``[1, 1, N, outputs]`` from ``[1, steps, N, inputs]``."""
        x = batch[0].permute(1, 0, 2).flatten(1)
        x = self.encoder(x) + self.points
        return self.decoder(call(self.processor, x))[None, None]
