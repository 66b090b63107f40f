# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the attention kernels share: rows in, rows out, scores, visibility and dropout."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(
    source,
    batch,
    head,
    row,
    num_rows,
    stride_b,
    stride_h,
    stride_n,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Load ``[ROWS, BLOCK_D]`` from row ``row`` on of one head; what lies outside the head is 0.

    ``source`` is a descriptor of ``[B, N, H, D]``, which zero-fills by itself, or a pointer, where ``MASKED`` asks for
    the check against ``num_rows``.
    """
    if DESCRIPTORS:
        tile = tl.reshape(source.load([batch, row, head, 0]), [ROWS, BLOCK_D])
    else:
        pointers = _row_pointers(source, batch, head, row, stride_b, stride_h, stride_n, ROWS, BLOCK_D)
        inside_d = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
        inside_n = (row + tl.arange(0, ROWS) < num_rows)[:, None]
        if MASKED and HEAD_DIM < BLOCK_D:
            tile = tl.load(pointers, mask=inside_n & inside_d, other=0.0)
        elif MASKED:
            tile = tl.load(pointers, mask=inside_n, other=0.0)
        elif HEAD_DIM < BLOCK_D:
            tile = tl.load(pointers, mask=inside_d, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def store_rows(
    destination_ptr,
    tile,
    batch,
    head,
    row,
    num_rows,
    stride_b,
    stride_h,
    stride_n,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Store the part of ``[ROWS, BLOCK_D]`` that lies inside one head, from row ``row`` on."""
    pointers = _row_pointers(destination_ptr, batch, head, row, stride_b, stride_h, stride_n, ROWS, BLOCK_D)
    inside = (row + tl.arange(0, ROWS) < num_rows)[:, None] & (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    tl.store(pointers, tile.to(destination_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _row_pointers(base_ptr, batch, head, row, stride_b, stride_h, stride_n, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    # The tile's corner in int64, since a tensor may exceed 2^31 elements; offsets within a tile fit int32.
    corner = (
        tl.cast(batch, tl.int64) * stride_b + tl.cast(head, tl.int64) * stride_h + tl.cast(row, tl.int64) * stride_n
    )
    return base_ptr + corner + (tl.arange(0, ROWS)[:, None] * stride_n + tl.arange(0, BLOCK_D)[None, :])


@triton.jit
def products_with(own, others, PRECISION: tl.constexpr):
    """Multiply a program's own rows with others: ``[own rows, other rows]``.

    Where fp32 products are left to the plain arithmetic units, a thread holds whole rows of the left factor. Those that
    stay throughout the loop go to the right, else they take up all registers.
    """
    if PRECISION == "ieee" and own.dtype == tl.float32:
        products = tl.trans(tl.dot(others, tl.trans(own), input_precision=PRECISION))
    else:
        products = tl.dot(own, tl.trans(others), input_precision=PRECISION)
    return products


@triton.jit
def transform_scores(
    products, position, key_index, softmax_scale, softcap, slope, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr
):
    """Turn dot products into scores.

    Returns ``scores``, the ``factor`` (> 0) that brings them to log2 units, and the tanh of the softcap (0 without).
    The factor stays outside so that scale and subtraction of the maximum become one multiply-add.
    """
    tanh = 0.0
    if SOFTCAP:
        # tanh as an exponential: libdevice's has no counterpart on other targets.
        tanh = 1.0 - 2.0 / (tl.exp2(products * (softmax_scale * (2.0 * LOG2_E) / softcap)) + 1.0)
        scores = tanh * (softcap * LOG2_E)
        if ALIBI:
            scores -= (slope * LOG2_E) * tl.abs(position - key_index).to(tl.float32)
        factor = 1.0
    elif ALIBI:
        scores = products * (softmax_scale * LOG2_E)
        scores -= (slope * LOG2_E) * tl.abs(position - key_index).to(tl.float32)
        factor = 1.0
    else:
        scores = products
        factor = softmax_scale * LOG2_E
    return scores, factor, tanh


@triton.jit
def visible(position, key_index, num_keys, left, right, WINDOWED: tl.constexpr):
    """Whether the query at ``position`` sees key ``key_index``."""
    seen = key_index < num_keys
    if WINDOWED:
        offset = key_index - position
        seen = seen & (offset >= -left) & (offset <= right)
    return seen


@triton.jit
def keep(seed, batch_head, query_index, key_index, dropout_p):
    """Whether dropout keeps a weight: a pure function of the seed, the head and the pair, equal in every kernel."""
    zero = tl.zeros_like(query_index + key_index)
    bits, _, _, _ = tl.philox(seed, zero + query_index, zero + key_index, zero + batch_head, zero)
    return tl.uint_to_uniform_float(bits) >= dropout_p


@triton.jit
def split_range(first_position, last_position, num, left, right, BLOCK: tl.constexpr, WINDOWED: tl.constexpr):
    """Split what the rows at ``first_position .. last_position`` see of ``num`` others into three runs of blocks.

    Returns ``(begin, full_begin, full_end, end)``: every row sees all of ``full_begin .. full_end``, a multiple of
    ``BLOCK``; ``begin .. full_begin`` and ``full_end .. end`` need masks.
    """
    begin = 0
    end = num
    full_begin = 0
    full_end = num
    if WINDOWED:
        # Descriptors of one fp32 number a row need 16-byte aligned starts.
        begin = tl.maximum(0, first_position - left) // 4 * 4
        end = tl.minimum(num, last_position + right + 1)
        full_begin = tl.minimum(last_position - left, end)
        full_begin = begin + tl.cdiv(tl.maximum(full_begin - begin, 0), BLOCK) * BLOCK
        full_end = tl.minimum(num, first_position + right + 1)
    full_end = full_begin + tl.maximum(full_end - full_begin, 0) // BLOCK * BLOCK
    return begin, full_begin, full_end, end
