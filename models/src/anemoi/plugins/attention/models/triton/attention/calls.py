# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What launches of all attention kernels share: options, layouts, arguments."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configurations import Configuration
from .configurations import head_dim_block

# The rows of a tile are addressed in int32 from its corner.
_MAX_ROW_STRIDE = 1 << 24
# Any multiple of 16 bytes.
_ALIGNED_STRIDE = 64
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
    launch_options: dict[str, int]
    configuration: Configuration

    def launch(self, device: torch.device) -> None:
        """Run the kernel on the device of its tensors, whichever is current.

        Raises
        ------
        RuntimeError
            If the kernel has to be compiled or loaded while a CUDA graph is captured, and the driver refuses that.
        """
        if self.grid == 0:
            return
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            try:
                self.kernel[(self.grid,)](**self.arguments, **self.constants, **self.launch_options)
            except Exception as error:
                if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
                    raise
                raise RuntimeError(
                    "The attention could not be captured in a CUDA graph: its kernel was not loaded before "
                    f"({type(error).__name__}). Allowed: a capture after a first run. Run forward and backward once "
                    "with these shapes before the capture."
                ) from error


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


def strides(**tensors: Tensor) -> dict[str, int]:
    """Name the strides of tensors ``[B, H, N, D]`` as the kernels do."""
    return {
        f"{name}_stride_{axis}": tensor.stride(dim)
        for name, tensor in tensors.items()
        for dim, axis in enumerate(("b", "h", "n"))
    }


def limits(query: Tensor, key: Tensor, options: Options) -> dict[str, Any]:
    """Collect sizes, window and scale, which every kernel takes."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    # No distance exceeds N_q + N_k, so this is "no limit" and keeps every sum of positions within int32.
    limit = num_queries + num_keys
    return {
        "num_heads": query.shape[1],
        "num_queries": num_queries,
        "num_keys": num_keys,
        "left": limit if options.left < 0 else min(options.left, limit),
        "right": limit if options.right < 0 else min(options.right, limit),
        "softmax_scale": options.softmax_scale,
    }


def describable(tensor: Tensor) -> bool:
    """Whether a tensor descriptor can stand for the tensor: 16-byte aligned rows, no zero stride."""
    aligned = tensor.data_ptr() % 16 == 0 and tensor.numel() > 0
    steps = [stride for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True) if size > 1]
    return aligned and all(stride > 0 and stride * tensor.itemsize % 16 == 0 for stride in steps)


def descriptor_geometry(tensor: Tensor, rows: int) -> tuple[list[int], list[int], list[int]]:
    """Sizes, strides and block of the descriptor ``[B, N, H, D]`` of a tensor ``[B, H, N, D]``."""
    batch, heads, num_rows, head_dim = tensor.shape
    sizes = [batch, num_rows, heads, head_dim]
    steps = [tensor.stride(0), tensor.stride(2), tensor.stride(1)]
    # The stride of a dimension of one element is arbitrary in torch, and means nothing.
    steps = [step if size > 1 else _ALIGNED_STRIDE for size, step in zip(sizes[:3], steps, strict=True)]
    return sizes, [*steps, 1], [1, rows, 1, head_dim_block(head_dim)]
