# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""From tensors to kernel launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:
    # Older releases of Triton: rows are loaded through pointers.
    TensorDescriptor = None

from ..requirement import has_verified_gluon
from . import configurations
from .backward_key_value import _attention_bwd_key_value_kernel
from .backward_query import _attention_bwd_query_kernel
from .calls import Call
from .calls import Options
from .calls import describable
from .calls import descriptor_geometry
from .calls import limits
from .calls import strides
from .forward import _attention_fwd_kernel

hopper: Any = None
if has_verified_gluon(triton.__version__):
    from .hopper import launch as hopper


def forward_call(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, options: Options, architecture: str
) -> Call:
    """Prepare the forward kernel, which writes ``out`` ``[B, H, N_q, D]`` and ``lse`` (log2 units)."""
    explicit = _explicit("forward", options, architecture, query, key, value)
    if explicit is not None:
        return hopper.forward_call(query, key, value, out, lse, options, explicit)
    config = _configuration("forward", query, options, architecture)
    sources, descriptors = _row_sources(
        config, {"query": query, "key": key, "value": value}, {"query": config.block_m}, config.block_n
    )
    arguments = {
        **sources,
        "out_ptr": out,
        "lse_ptr": lse,
        **strides(query=query, key=key, value=value, out=out),
        **_shared_arguments(query, key, lse, options),
    }
    constants = _constants(config, query, options, descriptors, architecture)
    return _call(_attention_fwd_kernel, query, query.shape[2], config.block_m, arguments, constants, config)


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
    architecture: str,
) -> Call:
    """Prepare the kernel that writes ``d_query`` and ``delta``."""
    explicit = _explicit("backward_query", options, architecture, query, key, value, d_out, out)
    if explicit is not None:
        return hopper.backward_query_call(d_out, query, key, value, out, lse, delta, d_query, options, explicit)
    config = _configuration("backward_query", query, options, architecture)
    tensors = {"query": query, "key": key, "value": value, "d_out": d_out, "out": out}
    rows = dict.fromkeys(("query", "d_out", "out"), config.block_m)
    sources, descriptors = _row_sources(config, tensors, rows, config.block_n)
    arguments = {
        **sources,
        "lse_ptr": lse,
        "delta_ptr": delta,
        "d_query_ptr": d_query,
        **strides(**tensors, d_query=d_query),
        **_shared_arguments(query, key, lse, options),
    }
    constants = _constants(config, query, options, descriptors, architecture)
    return _call(_attention_bwd_query_kernel, query, query.shape[2], config.block_m, arguments, constants, config)


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
    architecture: str,
) -> Call:
    """Prepare the kernel that writes ``d_key`` and ``d_value``; it reads what the query kernel left in ``delta``."""
    explicit = _explicit("backward_key_value", options, architecture, query, key, value, d_out)
    if explicit is not None:
        return hopper.backward_key_value_call(d_out, query, key, value, lse, delta, d_key, d_value, options, explicit)
    config = _configuration("backward_key_value", query, options, architecture)
    tensors = {"query": query, "key": key, "value": value, "d_out": d_out}
    rows = dict.fromkeys(("query", "d_out"), config.block_m)
    sources, descriptors = _row_sources(config, tensors, rows, config.block_n)
    arguments = {
        **sources,
        "lse_source": _number_source(lse, query, config, descriptors),
        "delta_source": _number_source(delta, query, config, descriptors),
        "d_key_ptr": d_key,
        "d_value_ptr": d_value,
        **strides(**tensors, d_key=d_key, d_value=d_value),
        **_shared_arguments(query, key, lse, options),
    }
    constants = _constants(config, query, options, descriptors, architecture)
    kernel = _attention_bwd_key_value_kernel
    return _call(kernel, query, key.shape[2], config.block_n, arguments, constants, config)


def _configuration(direction: str, query: Tensor, options: Options, architecture: str) -> configurations.Configuration:
    return configurations.configuration(architecture, direction, query.dtype, query.shape[3], windowed=options.windowed)


def _call(
    kernel: Callable,
    query: Tensor,
    rows: int,
    block: int,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    config: configurations.Configuration,
) -> Call:
    # One dimension: the others hold at most 65,535 programs.
    grid = -(-rows // block) * query.shape[0] * query.shape[1]
    launch_options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    if config.max_registers is not None:
        launch_options["maxnreg"] = config.max_registers
    return Call(kernel, grid, arguments, constants, launch_options, config)


def _shared_arguments(query: Tensor, key: Tensor, lse: Tensor, options: Options) -> dict[str, Any]:
    slopes = options.slopes
    return {
        **limits(query, key, options),
        "slopes_ptr": slopes,
        "seed_ptr": options.seed,
        "slopes_stride_b": 0 if slopes is None else slopes.stride(0),
        "slopes_stride_h": 0 if slopes is None else slopes.stride(1),
        "lse_stride": lse.shape[2],
        "softcap": options.softcap,
        "dropout_p": options.dropout_p,
    }


def _constants(
    config: configurations.Configuration, query: Tensor, options: Options, descriptors: bool, architecture: str
) -> dict[str, Any]:
    precision = "ieee"
    if query.dtype == torch.float32 and query.shape[3] <= 128 and not architecture.startswith("gfx"):
        # Three tf32 products recover fp32 accuracy; Triton's default would be one. For wider heads, the halves into
        # which they split the operands do not fit the registers.
        precision = "tf32x3"
    return {
        "HEAD_DIM": query.shape[3],
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_D": configurations.head_dim_block(query.shape[3]),
        "WINDOWED": options.windowed,
        "SOFTCAP": options.softcap > 0.0,
        "ALIBI": options.slopes is not None,
        "DROPOUT": options.dropout_p > 0.0,
        "DESCRIPTORS": descriptors,
        "PRECISION": precision,
    }


def _row_sources(
    config: configurations.Configuration, tensors: dict[str, Tensor], rows: dict[str, int], default_rows: int
) -> tuple[dict[str, Any], bool]:
    """Describe the tensors ``[B, H, N, D]`` a kernel reads: all by descriptors or, if one does not allow it, none."""
    descriptors = config.descriptors and TensorDescriptor is not None and all(map(describable, tensors.values()))
    if not descriptors:
        return {f"{name}_source": tensor for name, tensor in tensors.items()}, False
    sources = {
        f"{name}_source": TensorDescriptor(tensor, *descriptor_geometry(tensor, rows.get(name, default_rows)))
        for name, tensor in tensors.items()
    }
    return sources, True


def _number_source(numbers: Tensor, query: Tensor, config: configurations.Configuration, descriptors: bool) -> Any:
    if not descriptors:
        return numbers
    batch, heads, padded = numbers.shape
    return TensorDescriptor(numbers, [batch * heads, query.shape[2]], [padded, 1], [1, config.block_m])


def _explicit(
    direction: str, options: Options, architecture: str, *tensors: Tensor
) -> configurations.Configuration | None:
    """Return the configuration of the Hopper kernel, or None where the portable kernel serves."""
    plain = options.softcap == 0.0 and options.slopes is None and options.dropout_p == 0.0
    if hopper is None or not plain or tensors[0].device.type != "cuda" or not all(map(describable, tensors)):
        return None
    return configurations.explicit_configuration(
        architecture, direction, tensors[0].dtype, tensors[0].shape[3], windowed=options.windowed
    )
