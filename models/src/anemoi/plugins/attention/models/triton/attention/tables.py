# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Tile sizes of the attention kernels: a static table, so that every process picks the same and none has to tune."""

from __future__ import annotations

from dataclasses import dataclass

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
    explicit : bool
        Whether the Hopper kernels with explicit asynchrony run instead of the portable ones.
    resident : bool
        Whether the Hopper kernels keep a program's own rows in registers instead of shared memory.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool = False
    max_registers: int | None = None
    explicit: bool = False
    resident: bool = False


# {architecture: {direction: {(bytes per number, head_dim bucket): (global, windowed)}}}; each entry is
# (block_m, block_n, num_warps, num_stages). An absent bucket takes the next larger one.
Entry = tuple[int, int, int, int]
Table = dict[str, dict[tuple[int, int], tuple[Entry, Entry]]]

_SM_80: Table = {
    "forward": {
        (2, 64): ((128, 64, 4, 3), (64, 64, 4, 3)),
        (2, 128): ((128, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((64, 32, 8, 2), (64, 32, 8, 2)),
        (4, 32): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (4, 64): ((32, 32, 8, 1), (32, 32, 8, 1)),
        (4, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 256): ((16, 16, 16, 1), (16, 16, 16, 1)),
    },
    "backward_query": {
        (2, 64): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (2, 128): ((64, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((32, 64, 8, 1), (32, 64, 8, 1)),
        (4, 32): ((64, 16, 4, 1), (64, 16, 4, 1)),
        (4, 64): ((32, 32, 8, 1), (32, 32, 8, 1)),
        (4, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 256): ((16, 16, 4, 1), (16, 16, 4, 1)),
    },
    "backward_key_value": {
        (2, 32): ((64, 32, 4, 3), (64, 32, 4, 3)),
        (2, 64): ((64, 32, 4, 2), (64, 32, 4, 2)),
        (2, 128): ((64, 64, 8, 2), (64, 64, 8, 2)),
        (2, 256): ((32, 32, 8, 1), (32, 32, 8, 1)),
        (4, 16): ((32, 32, 8, 1), (32, 32, 8, 1)),
        (4, 32): ((32, 16, 4, 1), (32, 16, 4, 1)),
        (4, 64): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 128): ((32, 16, 8, 1), (32, 16, 8, 1)),
        (4, 256): ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
}

_SM_80_FP32 = {
    direction: {key: entry for key, entry in rows.items() if key[0] == torch.float32.itemsize}
    for direction, rows in _SM_80.items()
}

_SM_90: Table = {
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
        (2, 128): ((32, 64, 4, 2), (32, 64, 8, 2)),
        (2, 256): ((32, 32, 8, 1), (32, 32, 8, 1)),
        **_SM_80_FP32["backward_key_value"],
    },
}

# 64 kB of local memory, wavefronts of 64.
_GFX_9: Table = {
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
        (4, 128): ((16, 16, 4, 1), (16, 16, 4, 1)),
        (4, 256): ((16, 16, 4, 1), (16, 16, 4, 1)),
    },
    "backward_key_value": {
        (2, 64): ((32, 64, 4, 1), (32, 64, 4, 1)),
        (2, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (2, 256): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 64): ((32, 32, 4, 1), (32, 32, 4, 1)),
        (4, 128): ((16, 32, 8, 1), (16, 32, 8, 1)),
        (4, 256): ((32, 16, 4, 1), (32, 16, 4, 1)),
    },
}

# The kernels with explicit asynchrony, where they are the faster ones on an H200; None and an absent bucket are left to
# the portable kernels. The stages are a power of two.
EXPLICIT: dict[str, dict[tuple[int, int], tuple[Entry | None, Entry | None]]] = {
    "forward": {(2, 32): ((64, 64, 4, 4), None), (2, 64): ((128, 64, 8, 4), None)},
    "backward_query": {(2, 64): (None, (64, 64, 4, 2)), (2, 128): ((64, 64, 4, 2), (64, 64, 4, 2))},
    "backward_key_value": {(2, 64): ((64, 64, 4, 4), (64, 64, 4, 2)), (2, 128): ((32, 64, 4, 4), (32, 64, 4, 4))},
}

PORTABLE = {"sm_80": _SM_80, "sm_89": _SM_80, "sm_90": _SM_90, "sm_100": _SM_90, "gfx90a": _GFX_9, "gfx942": _GFX_9}
ARCHITECTURES = tuple(PORTABLE)
WITH_DESCRIPTORS = ("sm_90", "sm_100")
EXPLICIT_ARCHITECTURE = "sm_90"
EXPLICIT_HEAD_DIMS = (32, 64, 128)
