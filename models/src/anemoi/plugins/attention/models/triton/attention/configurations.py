# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which tile sizes run where: a static table, so that every process picks the same and none has to tune."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DIRECTIONS = ("forward", "backward_query", "backward_key_value")


@dataclass(frozen=True)
class Configuration:
    """Tile sizes and launch options of one kernel.

    Parameters
    ----------
    block_m, block_n : int
        Queries and keys per tile.
    num_warps, num_stages : int
        Warps per program and depth of the software pipeline.
    descriptors : bool
        Whether rows are loaded through tensor descriptors (the bulk copy engine) where the layout allows.
    max_registers : int or None
        Limit on the registers of a thread, to fit one more program on a multiprocessor.
    resident : bool
        Whether the Hopper kernels keep a program's own rows in registers instead of shared memory.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool = False
    max_registers: int | None = None
    resident: bool = False


# {architecture: {direction: {(bytes per number, head_dim bucket): (global, windowed)}}}; each entry is
# (block_m, block_n, num_warps, num_stages). An absent bucket takes the next larger one.
_Entry = tuple[int, int, int, int]
_Table = dict[str, dict[tuple[int, int], tuple[_Entry, _Entry]]]

_SM_80: _Table = {
    "forward": {
        (2, 64): ((128, 64, 4, 3), (64, 64, 4, 3)),
        (2, 128): ((128, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((64, 32, 8, 2), (64, 32, 8, 2)),
        (4, 32): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (4, 64): ((32, 32, 4, 1), (32, 32, 4, 1)),
        (4, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
    "backward_query": {
        (2, 64): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (2, 128): ((64, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((32, 64, 8, 1), (32, 64, 8, 1)),
        (4, 32): ((64, 32, 4, 1), (64, 32, 4, 1)),
        (4, 64): ((32, 32, 4, 1), (32, 32, 4, 1)),
        (4, 128): ((32, 16, 8, 1), (32, 16, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
    "backward_key_value": {
        (2, 64): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (2, 128): ((64, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((32, 32, 8, 1), (32, 32, 8, 1)),
        (4, 32): ((32, 16, 4, 1), (32, 16, 4, 1)),
        (4, 64): ((16, 32, 4, 1), (16, 32, 4, 1)),
        (4, 128): ((32, 16, 8, 1), (32, 16, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
}

_SM_80_FP32 = {
    direction: {key: entry for key, entry in rows.items() if key[0] == torch.float32.itemsize}
    for direction, rows in _SM_80.items()
}

_SM_90: _Table = {
    "forward": {
        (2, 64): ((128, 64, 4, 3), (64, 64, 4, 3)),
        (2, 128): ((128, 128, 8, 2), (64, 64, 4, 3)),
        (2, 256): ((128, 64, 8, 2), (128, 64, 8, 2)),
        **_SM_80_FP32["forward"],
    },
    "backward_query": {
        (2, 64): ((64, 64, 4, 3), (64, 64, 4, 3)),
        (2, 128): ((64, 64, 4, 2), (64, 64, 4, 2)),
        (2, 256): ((32, 64, 8, 1), (32, 64, 8, 1)),
        **_SM_80_FP32["backward_query"],
    },
    "backward_key_value": {
        (2, 64): ((64, 64, 4, 3), (64, 64, 4, 3)),
        (2, 128): ((32, 64, 4, 2), (32, 64, 4, 1)),
        (2, 256): ((32, 32, 8, 1), (32, 32, 8, 1)),
        **_SM_80_FP32["backward_key_value"],
    },
}

# 64 kB of local memory, wavefronts of 64.
_GFX_9: _Table = {
    "forward": {
        (2, 64): ((128, 64, 4, 1), (64, 64, 4, 1)),
        (2, 128): ((128, 32, 4, 1), (64, 32, 4, 1)),
        (2, 256): ((64, 32, 8, 1), (64, 32, 8, 1)),
        (4, 64): ((64, 32, 4, 1), (64, 32, 4, 1)),
        (4, 128): ((64, 16, 4, 1), (64, 16, 4, 1)),
        (4, 256): ((32, 16, 8, 1), (32, 16, 8, 1)),
    },
    "backward_query": {
        (2, 64): ((64, 32, 4, 1), (64, 32, 4, 1)),
        (2, 128): ((64, 32, 8, 1), (64, 32, 8, 1)),
        (2, 256): ((32, 16, 8, 1), (32, 16, 8, 1)),
        (4, 64): ((32, 32, 4, 1), (32, 32, 4, 1)),
        (4, 128): ((32, 16, 8, 1), (32, 16, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
    "backward_key_value": {
        (2, 64): ((32, 64, 4, 1), (32, 64, 4, 1)),
        (2, 128): ((32, 64, 8, 1), (32, 64, 8, 1)),
        (2, 256): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 64): ((32, 32, 4, 1), (32, 32, 4, 1)),
        (4, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
}

# The kernels with explicit asynchrony, where they are the faster ones on an H200; None and an absent bucket are left to
# the portable kernels. The stages are a power of two.
_SM_90_EXPLICIT: dict[str, dict[tuple[int, int], tuple[_Entry | None, _Entry | None]]] = {
    "forward": {(2, 32): ((64, 64, 4, 4), None), (2, 64): ((128, 64, 8, 4), None)},
    "backward_query": {(2, 64): (None, (64, 64, 4, 2)), (2, 128): ((64, 64, 4, 2), (64, 64, 4, 2))},
    "backward_key_value": {(2, 64): ((64, 64, 4, 4), (64, 64, 4, 2)), (2, 128): ((32, 64, 4, 4), (32, 64, 4, 4))},
}

_TABLES = {"sm_80": _SM_80, "sm_89": _SM_80, "sm_90": _SM_90, "sm_100": _SM_90, "gfx90a": _GFX_9, "gfx942": _GFX_9}
ARCHITECTURES = tuple(_TABLES)
_WITH_DESCRIPTORS = ("sm_90", "sm_100")


def head_dim_block(head_dim: int) -> int:
    """Width of a tile that holds a head: the next power of two, at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def configuration(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, *, windowed: bool
) -> Configuration:
    """Look up the configuration of one kernel.

    Parameters
    ----------
    architecture : str
        One of ``ARCHITECTURES``.
    direction : str
        One of ``DIRECTIONS``.
    dtype : torch.dtype
        Of the tensors, one of ``DTYPES``.
    head_dim : int
        At most ``MAX_HEAD_DIM``.
    windowed : bool
        Whether either side of the window has a limit.
    """
    rows = _TABLES[architecture][direction]
    bucket = next(d for size, d in rows if size == dtype.itemsize and d >= head_dim_block(head_dim))
    block_m, block_n, num_warps, num_stages = rows[dtype.itemsize, bucket][windowed]
    # Below 64 rows the matrix units read registers; what a descriptor brings then takes a detour and spills.
    tall = (block_n if direction == "backward_key_value" else block_m) >= 64
    descriptors = tall and dtype.itemsize == 2 and architecture in _WITH_DESCRIPTORS
    return Configuration(block_m, block_n, num_warps, num_stages, descriptors)


def explicit_configuration(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, *, windowed: bool
) -> Configuration | None:
    """Look up the configuration of a kernel with explicit asynchrony; None where there is none. See above."""
    if architecture != "sm_90":
        return None
    entry = _SM_90_EXPLICIT[direction].get((dtype.itemsize, head_dim), (None, None))[windowed]
    return None if entry is None else Configuration(*entry, descriptors=True)


def shipped() -> Iterator[tuple[str, str, torch.dtype, int, bool]]:
    """Every combination the table serves: architecture, direction, dtype, head_dim (a power of two), windowed."""
    for architecture in ARCHITECTURES:
        for direction in DIRECTIONS:
            for dtype in DTYPES:
                for head_dim in (16, 32, 64, 128, 256):
                    for windowed in (False, True):
                        yield architecture, direction, dtype, head_dim, windowed


@lru_cache
def device_architecture(index: int) -> str:
    """Name the architecture of a CUDA or ROCm device, or the closest older one in the table."""
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]
        return name if name in _TABLES else "gfx90a"
    capability = (properties.major, properties.minor)
    if capability[0] == 9:
        return "sm_90"
    if capability[0] == 10:
        return "sm_100"
    # 8.0 and 8.7 have the shared memory of a data-centre card; 8.6, 8.9 and 12.x have 99 kB.
    return "sm_80" if capability in ((8, 0), (8, 7)) else "sm_89"


def architecture_of(device: torch.device) -> str:
    """Name the architecture whose configurations a device uses; the interpreter on a CPU takes those of sm_90."""
    if device.type != "cuda":
        return "sm_90"
    return device_architecture(torch.cuda.current_device() if device.index is None else device.index)
