# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``anemoi.models.layers.block``: the graph-transformer blocks of encoder, processor and decoder."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from ..attention_backends import graph_backends
from ..attention_backends import require_available
from ..environment import GRAPH_TRANSFORMER
from ..errors import BackendUnavailable
from .graph_attention_module import NAME
from .graph_attention_module import GraphAttentionModule
from .graph_edge_projection import seams_of
from .patches import PATCHES
from .requested import environment_or_own

LOGGER = logging.getLogger(__name__)


def patch(module: ModuleType) -> None:
    """Let the host's blocks know our backend, and follow the environment when a backend is set.

    Releases of the host differ in the methods that they have; what is not there is not replaced.
    """
    block_class = module.GraphTransformerBaseBlock
    methods = {name: getattr(block_class, name) for name in dir(block_class)}
    replacements = seams_of(block_class)
    if "set_attention_function" in methods:
        PATCHES.set(module, "ATTENTION_BACKEND", "")
        replacements["set_attention_function"] = set_own_backend
    if "apply_gt" in methods:
        replacements["apply_gt"] = _attending(methods["apply_gt"])
    if "attention_block" in methods:
        replacements["attention_block"] = _attending(methods["attention_block"])
    # The first method of a forward that needs to know the backend.
    first = "get_qkve" if "get_qkve" in methods else "shard_qkve_heads"
    replacements[first] = _choosing_first(replacements.get(first, methods[first]))
    for name, replacement in replacements.items():
        PATCHES.set(block_class, name, replacement)


def set_backend(block: Any, name: str) -> None:
    """Give a graph-transformer block a backend.

    Parameters
    ----------
    block : GraphTransformerBaseBlock
        The host's block; its weights are not touched.
    name : str
        Canonical name of a graph-transformer backend.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run on this machine, or if this release of the host does not have it.
    """
    require_available(name, GRAPH_TRANSFORMER)
    assign_backend(block, name, _host_kernel() if name == "triton" else None)


def assign_backend(block: Any, name: str, kernel: Any = None) -> None:
    """Give a block a backend without asking whether it can run here; ``kernel`` is the host's, for ``triton``."""
    from anemoi.models.layers.conv import GraphTransformerConv

    if name == NAME:
        conv: Any = GraphAttentionModule(block.out_channels_conv)
    elif name == "pyg":
        conv = GraphTransformerConv(out_channels=block.out_channels_conv)
    else:
        conv = kernel
    # torch refuses a function, which the host's kernel is, over a registered submodule.
    block._modules.pop("conv", None)
    block.conv = conv
    block.graph_attention_backend = name
    # The host's mark for "the environment has been heeded".
    block._attention_backend_applied = True


def current_backend(block: Any) -> str:
    """Return the name of the backend that a block was built or saved with; the oldest blocks know pyg alone."""
    return getattr(block, "graph_attention_backend", "pyg")


def set_own_backend(self: Any) -> None:
    """Replace ``GraphTransformerBaseBlock.set_attention_function``.

    Like the host's, it takes pyg where the host's kernel, with which the model was configured, can't run. Our backend,
    and one that the environment asks for, runs or raises.
    """
    from anemoi.models.layers.block import GraphTransformerBaseBlock

    stock: Callable[[Any], None] = _refuse_name
    if hasattr(GraphTransformerBaseBlock, "set_attention_function"):
        stock = PATCHES.original(GraphTransformerBaseBlock, "set_attention_function")
    own = current_backend(self)
    name = environment_or_own(self, own, GRAPH_TRANSFORMER, stock)
    if name is None:
        return
    available, reason = graph_backends()[name].available()
    if not available and name == own == "triton":
        _say_once(name, reason)
        name = "pyg"
    set_backend(self, name)


def _refuse_name(block: Any) -> None:
    """Stand in for the method of a host that has none: it knows no further names."""
    raise KeyError(block.graph_attention_backend)


def _host_kernel() -> Any:
    """Return the host's Triton attention: a function from release 0.18, an autograd function from 0.11.3."""
    from anemoi.models.layers import block as host

    if hasattr(host, "graph_transformer_attention_conv"):
        return host.graph_transformer_attention_conv
    if hasattr(host, "GraphTransformerFunction"):
        return host.GraphTransformerFunction.apply
    raise BackendUnavailable(
        "Backend 'triton' is the graph kernel of anemoi-models, and this release has none. Usable here: pyg, "
        f"{NAME}. Choose one of these, or install anemoi-models 0.11.3 or newer."
    )


@functools.cache
def _say_once(name: str, reason: str) -> None:
    LOGGER.warning("The model's graph attention backend '%s' cannot run here (%s): taking 'pyg'.", name, reason)


def _choose(block: Any) -> None:
    """Set the backend of a block that comes from a checkpoint.

    Older ones have chosen nothing yet. One with our backend holds the stock module that it was pickled as.
    """
    is_stock = current_backend(block) == NAME and not isinstance(block.conv, GraphAttentionModule)
    if is_stock or not getattr(block, "_attention_backend_applied", False):
        set_own_backend(block)


def _choosing_first(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _choose(self)
        return method(self, *args, **kwargs)

    return wrapper


def _attending(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap ``apply_gt`` and ``attention_block``.

    The latter cuts the edges into chunks to save memory. Our backend does not need it: the kernels store nothing of
    the size of the edges, and the torch path makes its own blocks.
    """

    @functools.wraps(method)
    def wrapper(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edges: Any,
        edge_index: Tensor,
        *args: Any,
        edges_are_dst_sorted: bool | None = None,
        **kwargs: Any,
    ) -> Tensor:
        _choose(self)
        if isinstance(self.conv, GraphAttentionModule):
            claim = edges_are_dst_sorted is True
            return self.conv(query, key, value, edges, edge_index, edges_are_dst_sorted=claim)
        if edges_are_dst_sorted is not None:
            kwargs["edges_are_dst_sorted"] = edges_are_dst_sorted
        return method(self, query, key, value, edges, edge_index, *args, **kwargs)

    return wrapper
