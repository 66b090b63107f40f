# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which tile sizes run where: static rules, so that every process picks the same and none has to tune."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
KERNELS = ("forward", "backward_destination", "backward_source")
MAX_FACTORISED_HEAD_DIM = 128
MAX_FACTORISED_ATTRIBUTES = 31


# Numbers in a tile's row block, and numbers of one gathered tile that a thread holds, by bytes per number.
_TILE = 1024
_PER_THREAD = {2: 32, 4: 16}
# 32 threads load 16 bytes of every row block at once.
_BYTES_PER_WARP = 512
_MAX_WARPS = 8
_MAX_BLOCK_E = 4
# tl.dot needs 16 rows.
_DOT_ROWS = 16
# Programs among which the factorised backward divides its tiles: enough to fill any GPU evenly, few enough that the
# shares of the weight's gradient stay small.
_FACTORISED_PROGRAMS = 8192
# Tiles a program takes one after another where each is a single step.
_SINGLE_GROUPS = 4
_MAX_GRID = 2**31 - 1


@dataclass(frozen=True)
class Configuration:
    """Tile sizes and launch options of one kernel.

    Parameters
    ----------
    nodes, heads : int
        Consecutive nodes and heads that make the rows of a tile. One head: neighbouring nodes share gathered rows,
        which then come from the first-level cache.
    block_e : int
        Edges of each row per step.
    num_warps, num_stages : int
        Warps per program and depth of the software pipeline.
    """

    nodes: int
    heads: int
    block_e: int
    num_warps: int
    num_stages: int = 1


def block_size(length: int) -> int:
    """Width of a tile that holds ``length`` numbers: the next power of two, at least 16."""
    return max(16, 1 << (length - 1).bit_length())


def configuration(kernel: str, dtype: torch.dtype, head_dim: int, *, factorised: bool = False) -> Configuration:
    """Look up the configuration of one kernel.

    Parameters
    ----------
    kernel : str
        One of ``KERNELS``.
    dtype : torch.dtype
        Of the tensors, one of ``DTYPES``.
    head_dim : int
        C.
    factorised : bool
        Whether edges come as attributes.
    """
    block_c = block_size(head_dim)
    # One product of matrices per tile: the fewest rows keep most registers free.
    nodes = _DOT_ROWS if factorised and kernel != "backward_source" else max(1, _TILE // block_c)
    size = nodes * block_c
    num_warps = min(_MAX_WARPS, max(1, size * dtype.itemsize // _BYTES_PER_WARP))
    block_e = min(_MAX_BLOCK_E, max(1, _PER_THREAD[dtype.itemsize] * 32 * num_warps // size))
    return Configuration(nodes, 1, block_e, num_warps)


def groups(num_tiles: int, num_heads: int, *, single: bool, accumulates: bool) -> int:
    """Tiles that one program takes one after another.

    Parameters
    ----------
    num_tiles : int
        Tiles of each head block.
    num_heads : int
        Head blocks.
    single : bool
        Whether each tile is a single step.
    accumulates : bool
        Whether every program writes a share of the weight's gradient.
    """
    if accumulates:
        return max(1, -(-num_tiles * num_heads // _FACTORISED_PROGRAMS))
    wanted = _SINGLE_GROUPS if single else 1
    return max(wanted, -(-num_tiles * num_heads // _MAX_GRID))
