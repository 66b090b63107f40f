# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""From tensors to launches of the Hopper kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..calls import Call
from ..calls import Options
from ..calls import descriptor_geometry
from ..calls import limits
from ..calls import strides
from ..configurations import Configuration
from .backward_key_value import _hopper_bwd_key_value_kernel
from .backward_query import _hopper_bwd_query_kernel
from .forward import _hopper_fwd_kernel


def forward_call(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, options: Options, config: Configuration
) -> Call:
    """Prepare the forward kernel, which writes ``out`` ``[B, H, N_q, D]`` and ``lse`` (log2 units)."""
    arguments = {
        **_sources(config.block_m, query=query),
        **_sources(config.block_n, key=key, value=value),
        "out_ptr": out,
        "lse_ptr": lse,
        "lse_stride": lse.shape[2],
        **strides(out=out),
        **limits(query, key, options),
    }
    return _call(_hopper_fwd_kernel, query, query.shape[2], config.block_m, arguments, options, config)


def backward_query_call(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_query: Tensor,
    options: Options,
    config: Configuration,
) -> Call:
    """Prepare the kernel that writes ``d_query`` and ``delta``."""
    arguments = {
        **_sources(config.block_m, query=query, d_out=d_out, out=out),
        **_sources(config.block_n, key=key, value=value),
        "lse_ptr": lse,
        "delta_ptr": delta,
        "lse_stride": lse.shape[2],
        "d_query_ptr": d_query,
        **strides(d_query=d_query),
        **limits(query, key, options),
    }
    return _call(_hopper_bwd_query_kernel, query, query.shape[2], config.block_m, arguments, options, config)


def backward_key_value_call(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_key: Tensor,
    d_value: Tensor,
    options: Options,
    config: Configuration,
) -> Call:
    """Prepare the kernel that writes ``d_key`` and ``d_value``; it reads what the query kernel left in ``delta``."""
    arguments = {
        **_sources(config.block_m, query=query, d_out=d_out),
        **_sources(config.block_n, key=key, value=value),
        "lse_source": _number_source(lse, query, config),
        "delta_source": _number_source(delta, query, config),
        "d_key_ptr": d_key,
        "d_value_ptr": d_value,
        **strides(d_key=d_key, d_value=d_value),
        **limits(query, key, options),
    }
    return _call(_hopper_bwd_key_value_kernel, query, key.shape[2], config.block_n, arguments, options, config)


def _call(
    kernel: Any,
    query: Tensor,
    rows: int,
    block: int,
    arguments: dict[str, Any],
    options: Options,
    config: Configuration,
) -> Call:
    constants = {
        "HEAD_DIM": query.shape[3],
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "STAGES": config.num_stages,
        "NUM_WARPS": config.num_warps,
        "WINDOWED": options.windowed,
        "RESIDENT": config.resident,
    }
    grid = -(-rows // block) * query.shape[0] * query.shape[1]
    launch_options = {"num_warps": config.num_warps}
    if config.max_registers is not None:
        launch_options["maxnreg"] = config.max_registers
    return Call(kernel, grid, arguments, constants, launch_options, config)


def _sources(rows: int, **tensors: Tensor) -> dict[str, TensorDescriptor]:
    sources = {}
    for name, tensor in tensors.items():
        sizes, steps, block = descriptor_geometry(tensor, rows)
        # One row of a tile, at most the 128 bytes that a swizzle covers.
        layout = NVMMASharedLayout(min(128, block[-1] * tensor.itemsize), 8 * tensor.itemsize, 4)
        sources[f"{name}_source"] = TensorDescriptor(tensor, sizes, steps, block, layout)
    return sources


def _number_source(numbers: Tensor, query: Tensor, config: Configuration) -> TensorDescriptor:
    batch, heads, padded = numbers.shape
    sizes = [batch * heads, query.shape[2]]
    return TensorDescriptor(numbers, sizes, [padded, 1], [1, config.block_m], NVMMASharedLayout(0, 32, 2))
