# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the graph-attention kernels share: tiles of nodes, rows of gathered nodes and edges, small products."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Below every score, yet finite: a node without edges then leaves exp2(-inf - LOWEST) = 0 and no NaN.
LOWEST = tl.constexpr(-1.0e38)

RUN_TIME = ["attributes_stride", "num_nodes", "num_edges", "groups", "split_above"]
"""Integers that must not cause a compilation when they change."""


@triton.jit
def tile_rows(block, head_block, num_nodes, NUM_HEADS: tl.constexpr, NODES: tl.constexpr, HEADS: tl.constexpr):
    """Name the rows of a tile: ``NODES`` consecutive nodes times ``HEADS`` heads.

    Returns node, head and whether the row exists, all ``[rows, 1]``. Numbers of a row keep the shape ``[rows, 1]`` and
    its vectors ``[rows, 1, C]`` throughout the kernels: next to gathered tiles ``[rows, BLOCK_E, C]``, the compiler
    then leaves every element with the same thread.
    """
    index = tl.arange(0, NODES * HEADS)[:, None]
    node = block * NODES + index // HEADS
    head = head_block * HEADS + index % HEADS
    return node, head, (node < num_nodes) & (head < NUM_HEADS)


@triton.jit
def row_pointers(base_ptr, row, head, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Point at ``WIDTH`` numbers of head ``head`` in row ``row``: their shape and ``BLOCK``."""
    # int64, since 2.1M edges x 1024 channels exceed 2^31.
    corner = row.to(tl.int64) * stride + head * WIDTH
    return base_ptr + (tl.expand_dims(corner, -1) + tl.arange(0, BLOCK))


@triton.jit
def row_mask(inside, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Whether an element of such rows exists."""
    mask = tl.expand_dims(inside, -1)
    if WIDTH < BLOCK:
        mask = mask & (tl.arange(0, BLOCK) < WIDTH)
    return mask


@triton.jit
def load_rows(base_ptr, row, head, inside, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load rows as they are stored; what does not exist is 0."""
    pointers = row_pointers(base_ptr, row, head, stride, WIDTH, BLOCK)
    return tl.load(pointers, mask=row_mask(inside, WIDTH, BLOCK), other=0.0)


@triton.jit
def store_rows(base_ptr, rows, row, head, inside, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store rows in the dtype of their destination."""
    pointers = row_pointers(base_ptr, row, head, stride, WIDTH, BLOCK)
    tl.store(pointers, rows.to(base_ptr.dtype.element_ty), mask=row_mask(inside, WIDTH, BLOCK))


@triton.jit
def edge_slots(start, end, step, BLOCK_E: tl.constexpr):
    """Positions of the edges of step ``step`` of every row, and whether they exist: ``[rows, BLOCK_E]``."""
    position = start + (step * BLOCK_E + tl.arange(0, BLOCK_E))[None, :]
    return position, position < end


@triton.jit
def load_index(index_ptr, position, inside):
    """Load node or edge numbers; 0 where there is no edge."""
    return tl.load(index_ptr + position, mask=inside, other=0)


@triton.jit
def edge_row(edge_row_ptr, position, inside, PERMUTED: tl.constexpr):
    """Row of the caller's edge tensor for a position in the order by destination."""
    row = position
    if PERMUTED:
        row = load_index(edge_row_ptr, position, inside)
    return row


@triton.jit
def weight_offsets(position, head, num_edges):
    """Where the weight of an edge and a head lies in ``[H, M]``."""
    return head.to(tl.int64) * num_edges + position


@triton.jit
def load_attributes(
    base_ptr, row, inside, attributes_stride, WIDTH: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr
):
    """Load attributes as ``[rows, BLOCK_E, PARTS, LANES]`` in fp32.

    With as many lanes as a row of channels has threads, attributes lie where the weights of their edges are. For the
    same reason ``attributes_stride`` may not be specialised: wider loads would spread them over fewer threads.
    """
    column = tl.arange(0, PARTS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    corner = row.to(tl.int64) * attributes_stride
    pointers = base_ptr + (corner[:, :, None, None] + column)
    return tl.load(pointers, mask=inside[:, :, None, None] & (column < WIDTH), other=0.0).to(tl.float32)


@triton.jit
def load_weight(
    weight_ptr,
    head,
    HEAD_DIM: tl.constexpr,
    NUM_ATTRIBUTES: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """Load one head's part ``[BLOCK_C, BLOCK_A]`` of the edge projection, zero-padded."""
    channel = tl.arange(0, BLOCK_C)
    attribute = tl.arange(0, BLOCK_A)
    offsets = (head * HEAD_DIM + channel)[:, None] * NUM_ATTRIBUTES + attribute[None, :]
    inside = (channel < HEAD_DIM)[:, None] & (attribute < NUM_ATTRIBUTES)[None, :]
    return tl.load(weight_ptr + offsets, mask=inside, other=0.0)


@triton.jit
def dot_stored(a, b):
    """Multiply two matrices of stored numbers into fp32, without rounding them."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def dot_summed(stored, summed, accumulator):
    """Multiply a matrix of stored numbers with one of fp32 sums, which keep at least 16 bits."""
    if stored.dtype == tl.bfloat16:
        high = summed.to(tl.bfloat16)
        low = (summed - high.to(tl.float32)).to(tl.bfloat16)
        accumulator = tl.dot(stored, high, accumulator)
        accumulator = tl.dot(stored, low, accumulator)
    else:
        # fp16 has too small a range for sums.
        accumulator = tl.dot(stored.to(tl.float32), summed, accumulator, input_precision="ieee")
    return accumulator
