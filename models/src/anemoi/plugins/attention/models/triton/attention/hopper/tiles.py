# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the Hopper kernels share: block ranges, visibility, the store of a tile."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.language.nvidia.hopper import tma

LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def block_counts(first_position, last_position, num, left, right, BLOCK: gl.constexpr, WINDOWED: gl.constexpr):
    """Count the blocks of ``num`` others that the rows at ``first_position .. last_position`` see.

    Returns ``(begin, masked_left, full, total)``: from ``begin`` on come ``masked_left`` blocks that need masks, then
    blocks that every row sees whole, up to ``full``, then masked ones up to ``total``.
    """
    begin = 0
    end = num
    masked_left = 0
    full_end = num
    if WINDOWED:
        # Descriptors of one fp32 number a row need 16-byte aligned starts.
        begin = gl.maximum(0, first_position - left) // 4 * 4
        end = gl.maximum(begin, gl.minimum(num, last_position + right + 1))
        full_end = gl.minimum(num, first_position + right + 1)
        masked_left = (gl.maximum(last_position - left - begin, 0) + BLOCK - 1) // BLOCK
    total = (end - begin + BLOCK - 1) // BLOCK
    masked_left = gl.minimum(masked_left, total)
    full = gl.maximum(masked_left, gl.maximum(full_end - begin, 0) // BLOCK)
    return begin, masked_left, full, total


@gluon.jit
def visible(position, key_index, num_keys, left, right, WINDOWED: gl.constexpr):
    """Whether the query at ``position`` sees key ``key_index``."""
    seen = key_index < num_keys
    if WINDOWED:
        offset = key_index - position
        seen = seen & (offset >= -left) & (offset <= right)
    return seen


@gluon.jit
def store_rows(
    pointer,
    tile,
    batch,
    head,
    row,
    num_rows,
    stride_b,
    stride_h,
    stride_n,
    ROWS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):
    """Store the rows of ``[ROWS, HEAD_DIM]`` that lie inside one head, 16 bytes a thread."""
    chunks: gl.constexpr = HEAD_DIM // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // chunks, chunks], [NUM_WARPS, 1], [1, 0])
    tile = gl.convert_layout(tile.to(pointer.dtype.element_ty), layout)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, layout))[None, :]
    corner = batch.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h + row.to(gl.int64) * stride_n
    gl.store(pointer + corner + (rows * stride_n + columns), tile, mask=row + rows < num_rows)


@gluon.jit
def copy_key_value(
    block,
    needed,
    begin,
    batch,
    head,
    sources,
    rings,
    arrived,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Start the copies of one block of keys and values into its slot of the rings."""
    key_source, value_source = sources
    key_ring, value_ring = rings
    slot = block & (STAGES - 1)
    barrier = arrived.index(slot)
    row = begin + block * BLOCK_N
    mbarrier.expect(barrier, 2 * BLOCK_N * HEAD_DIM * 2, pred=needed)
    tma.async_copy_global_to_shared(key_source, [batch, row, head, 0], barrier, key_ring.index(slot), pred=needed)
    tma.async_copy_global_to_shared(value_source, [batch, row, head, 0], barrier, value_ring.index(slot), pred=needed)
