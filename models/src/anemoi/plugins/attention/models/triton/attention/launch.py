# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""From tensors to kernel launches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:
    # Triton before 3.3: rows are loaded through pointers.
    TensorDescriptor = None

from . import configurations
from .backward_key_value import _attention_bwd_key_value_kernel
from .backward_query import _attention_bwd_query_kernel
from .forward import _attention_fwd_kernel

# The rows of a tile are addressed in int32 from its corner.
_MAX_ROW_STRIDE = 1 << 24
# Descriptors are 16-byte aligned, so a row of LSE is padded to 4 fp32 numbers.
_LSE_MULTIPLE = 4


@dataclass(frozen=True)
class Options:
    """What an attention does beyond its tensors; numbers as the kernels take them.

    Parameters
    ----------
    left, right : int
        Window, -1 for no limit.
    softmax_scale, softcap, dropout_p : float
        As in ``fused_attention``.
    slopes : Tensor or None
        ALiBi slopes ``[B, H]``, fp32.
    seed : Tensor or None
        Dropout seed ``[1]``, int64.
    """

    left: int
    right: int
    softmax_scale: float
    softcap: float = 0.0
    dropout_p: float = 0.0
    slopes: Tensor | None = None
    seed: Tensor | None = None

    @property
    def windowed(self) -> bool:
        """Whether either side of the window has a limit."""
        return self.left >= 0 or self.right >= 0


@dataclass(frozen=True)
class Call:
    """A kernel with its grid and arguments, not launched yet."""

    kernel: Any
    grid: int
    arguments: dict[str, Any]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int

    def launch(self, device: torch.device) -> None:
        """Run the kernel on the device of its tensors, whichever is current."""
        if self.grid == 0:
            return
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[(self.grid,)](
                **self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
            )


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor itself where the kernels can read its layout, a contiguous copy otherwise."""
    return tensor if _has_rows(tensor) else tensor.contiguous()


def empty_like(tensor: Tensor) -> Tensor:
    """Allocate a tensor of the same shape, in the same layout where the kernels can write it."""
    empty = torch.empty_like(tensor)
    return empty if _has_rows(empty) else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _has_rows(tensor: Tensor) -> bool:
    strides = tensor.stride()
    return strides[3] == 1 and 0 not in strides and strides[2] < _MAX_ROW_STRIDE


def empty_lse(query: Tensor) -> Tensor:
    """Allocate ``[B, H, N_q padded]`` fp32, one number a query."""
    batch, heads, rows, _ = query.shape
    padded = -(-rows // _LSE_MULTIPLE) * _LSE_MULTIPLE
    return torch.empty(batch, heads, padded, device=query.device, dtype=torch.float32)


def forward_call(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, options: Options, architecture: str
) -> Call:
    """Prepare the forward kernel, which writes ``out`` ``[B, H, N_q, D]`` and ``lse`` (log2 units)."""
    config = _configuration("forward", query, options, architecture)
    sources, descriptors = _row_sources(
        config, {"query": query, "key": key, "value": value}, {"query": config.block_m}, config.block_n
    )
    arguments = {
        **sources,
        "out_ptr": out,
        "lse_ptr": lse,
        **_strides(query=query, key=key, value=value, out=out),
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
    config = _configuration("backward_query", query, options, architecture)
    tensors = {"query": query, "key": key, "value": value, "d_out": d_out, "out": out}
    rows = dict.fromkeys(("query", "d_out", "out"), config.block_m)
    sources, descriptors = _row_sources(config, tensors, rows, config.block_n)
    arguments = {
        **sources,
        "lse_ptr": lse,
        "delta_ptr": delta,
        "d_query_ptr": d_query,
        **_strides(**tensors, d_query=d_query),
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
        **_strides(**tensors, d_key=d_key, d_value=d_value),
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
    return Call(kernel, grid, arguments, constants, config.num_warps, config.num_stages)


def _strides(**tensors: Tensor) -> dict[str, int]:
    return {
        f"{name}_stride_{axis}": tensor.stride(dim)
        for name, tensor in tensors.items()
        for dim, axis in enumerate(("b", "h", "n"))
    }


def _shared_arguments(query: Tensor, key: Tensor, lse: Tensor, options: Options) -> dict[str, Any]:
    num_queries, num_keys = query.shape[2], key.shape[2]
    # No distance exceeds N_q + N_k, so this is "no limit" and keeps every sum of positions within int32.
    limit = num_queries + num_keys
    slopes = options.slopes
    return {
        "slopes_ptr": slopes,
        "seed_ptr": options.seed,
        "slopes_stride_b": 0 if slopes is None else slopes.stride(0),
        "slopes_stride_h": 0 if slopes is None else slopes.stride(1),
        "lse_stride": lse.shape[2],
        "num_heads": query.shape[1],
        "num_queries": num_queries,
        "num_keys": num_keys,
        "left": limit if options.left < 0 else min(options.left, limit),
        "right": limit if options.right < 0 else min(options.right, limit),
        "softmax_scale": options.softmax_scale,
        "softcap": options.softcap,
        "dropout_p": options.dropout_p,
    }


def _constants(
    config: configurations.Configuration, query: Tensor, options: Options, descriptors: bool, architecture: str
) -> dict[str, Any]:
    precision = "ieee"
    if query.dtype == torch.float32 and not architecture.startswith("gfx"):
        # Three tf32 products recover fp32 accuracy; Triton's default would be one.
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
    descriptors = config.descriptors and TensorDescriptor is not None and all(map(_describable, tensors.values()))
    if not descriptors:
        return {f"{name}_source": tensor for name, tensor in tensors.items()}, False
    sources = {}
    for name, tensor in tensors.items():
        batch, heads, num_rows, head_dim = tensor.shape
        block = [1, rows.get(name, default_rows), 1, configurations.head_dim_block(head_dim)]
        strides = [tensor.stride(0), tensor.stride(2), tensor.stride(1), 1]
        # The stride of a dimension of one element is arbitrary in torch, and means nothing.
        sizes = [batch, num_rows, heads, head_dim]
        strides = [stride if size > 1 else _ALIGNED for size, stride in zip(sizes[:3], strides[:3])] + [1]
        sources[f"{name}_source"] = TensorDescriptor(tensor, sizes, strides, block)
    return sources, True


_ALIGNED = 64


def _describable(tensor: Tensor) -> bool:
    aligned = tensor.data_ptr() % 16 == 0 and tensor.numel() > 0
    strides = [stride for size, stride in zip(tensor.shape[:3], tensor.stride()[:3]) if size > 1]
    return aligned and all(stride > 0 and stride * tensor.itemsize % 16 == 0 for stride in strides)


def _number_source(numbers: Tensor, query: Tensor, config: configurations.Configuration, descriptors: bool) -> Any:
    if not descriptors:
        return numbers
    batch, heads, padded = numbers.shape
    return TensorDescriptor(numbers, [batch * heads, query.shape[2]], [padded, 1], [1, config.block_m])
