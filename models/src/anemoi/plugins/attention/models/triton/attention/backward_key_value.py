# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backward kernel of fused attention for the gradients of keys and values."""

import triton
import triton.language as tl

from .forward import RUN_TIME
from .tiles import keep
from .tiles import load_rows
from .tiles import products_with
from .tiles import split_range
from .tiles import store_rows
from .tiles import transform_scores
from .tiles import visible


@triton.jit
def _load_row_numbers(
    source, batch_head, row, num_rows, stride, ROWS: tl.constexpr, DESCRIPTORS: tl.constexpr, MASKED: tl.constexpr
):
    """Load ``[1, ROWS]`` fp32 numbers that belong to queries; outside the head they are 0."""
    if DESCRIPTORS:
        numbers = source.load([batch_head, row])
    else:
        rows = row + tl.arange(0, ROWS)[None, :]
        pointers = source + tl.cast(batch_head, tl.int64) * stride + rows
        numbers = tl.load(pointers, mask=rows < num_rows, other=0.0) if MASKED else tl.load(pointers)
    return numbers


@triton.jit
def _key_value_steps(
    d_key,
    d_value,
    key,
    value,
    query_source,
    d_out_source,
    lse_source,
    delta_source,
    batch,
    head,
    first_key,
    first,
    last,
    query_strides,
    d_out_strides,
    lse_stride,
    num_heads,
    num_queries,
    num_keys,
    left,
    right,
    softmax_scale,
    softcap,
    slope,
    seed,
    dropout_p,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add to ``d_value`` and ``d_key / softmax_scale`` what the query blocks from ``first`` to ``last`` contribute.

    Everything is transposed, ``[BLOCK_N, BLOCK_M]``, so that the sums over queries need no transposed weights.
    """
    batch_head = batch * num_heads + head
    key_index = first_key + tl.arange(0, BLOCK_N)[:, None]
    for start in range(first, last, BLOCK_M):
        query_index = start + tl.arange(0, BLOCK_M)[None, :]
        position = query_index + (num_keys - num_queries)
        query = load_rows(
            query_source,
            batch,
            head,
            start,
            num_queries,
            *query_strides,
            BLOCK_M,
            HEAD_DIM,
            BLOCK_D,
            DESCRIPTORS,
            MASKED,
        )
        lse = _load_row_numbers(lse_source, batch_head, start, num_queries, lse_stride, BLOCK_M, DESCRIPTORS, MASKED)
        products = tl.dot(key, tl.trans(query), input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
        scores, factor, tanh = transform_scores(
            products, position, key_index, softmax_scale, softcap, slope, SOFTCAP, ALIBI
        )
        weights = tl.exp2(scores * factor - lse)
        if MASKED:
            seen = visible(position, key_index, num_keys, left, right, WINDOWED) & (query_index < num_queries)
            weights = tl.where(seen, weights, 0.0)
        d_out = load_rows(
            d_out_source,
            batch,
            head,
            start,
            num_queries,
            *d_out_strides,
            BLOCK_M,
            HEAD_DIM,
            BLOCK_D,
            DESCRIPTORS,
            MASKED,
        )
        delta = _load_row_numbers(
            delta_source, batch_head, start, num_queries, lse_stride, BLOCK_M, DESCRIPTORS, MASKED
        )
        if DROPOUT:
            kept = keep(seed, batch_head, query_index, key_index, dropout_p)
            dropped = tl.where(kept, weights / (1.0 - dropout_p), 0.0)
            d_value = tl.dot(dropped.to(d_out.dtype), d_out, d_value, input_precision=PRECISION)
        else:
            d_value = tl.dot(weights.to(d_out.dtype), d_out, d_value, input_precision=PRECISION)
        d_weights = products_with(value, d_out, PRECISION)  # [BLOCK_N, BLOCK_M]
        if DROPOUT:
            d_weights = tl.where(kept, d_weights / (1.0 - dropout_p), 0.0)
        d_scores = weights * (d_weights - delta)
        if SOFTCAP:
            d_scores *= 1.0 - tanh * tanh
        d_key = tl.dot(d_scores.to(query.dtype), query, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_bwd_key_value_kernel(
    query_source,
    key_source,
    value_source,
    d_out_source,
    lse_source,
    delta_source,
    d_key_ptr,
    d_value_ptr,
    slopes_ptr,
    seed_ptr,
    query_stride_b,
    query_stride_h,
    query_stride_n,
    key_stride_b,
    key_stride_h,
    key_stride_n,
    value_stride_b,
    value_stride_h,
    value_stride_n,
    d_out_stride_b,
    d_out_stride_h,
    d_out_stride_n,
    d_key_stride_b,
    d_key_stride_h,
    d_key_stride_n,
    d_value_stride_b,
    d_value_stride_h,
    d_value_stride_n,
    slopes_stride_b,
    slopes_stride_h,
    lse_stride,
    num_heads,
    num_queries,
    num_keys,
    left,
    right,
    softmax_scale,
    softcap,
    dropout_p,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute ``d_key`` and ``d_value`` for one block of keys of one head.

    The weights are recomputed from the LSE. Sums are fp32; each row is written once, so the result is deterministic.
    A key that no query sees gets zeros.
    """
    num_blocks = tl.cdiv(num_keys, BLOCK_N)
    batch_head = tl.program_id(0) // num_blocks
    first_key = (tl.program_id(0) % num_blocks) * BLOCK_N
    batch = batch_head // num_heads
    head = batch_head % num_heads
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes_ptr + batch * slopes_stride_b + head * slopes_stride_h)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)

    query_strides = (query_stride_b, query_stride_h, query_stride_n)
    key_strides = (key_stride_b, key_stride_h, key_stride_n)
    value_strides = (value_stride_b, value_stride_h, value_stride_n)
    d_out_strides = (d_out_stride_b, d_out_stride_h, d_out_stride_n)
    key = load_rows(
        key_source, batch, head, first_key, num_keys, *key_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, True
    )
    value = load_rows(
        value_source, batch, head, first_key, num_keys, *value_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, True
    )

    # Query i sees key j if j - right <= i + num_keys - num_queries <= j + left: the window with its sides exchanged.
    alignment = num_keys - num_queries
    last_key = tl.minimum(first_key + BLOCK_N, num_keys) - 1
    begin, full_begin, full_end, end = split_range(
        first_key - alignment, last_key - alignment, num_queries, right, left, BLOCK_M, WINDOWED
    )
    d_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_value = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for stage in tl.static_range(0 if WINDOWED else 1, 3):
        d_key, d_value = _key_value_steps(
            d_key,
            d_value,
            key,
            value,
            query_source,
            d_out_source,
            lse_source,
            delta_source,
            batch,
            head,
            first_key,
            begin if stage == 0 else (full_begin if stage == 1 else full_end),
            tl.minimum(full_begin, end) if stage == 0 else (full_end if stage == 1 else end),
            query_strides,
            d_out_strides,
            lse_stride,
            num_heads,
            num_queries,
            num_keys,
            left,
            right,
            softmax_scale,
            softcap,
            slope,
            seed,
            dropout_p,
            HEAD_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            WINDOWED,
            SOFTCAP,
            ALIBI,
            DROPOUT,
            DESCRIPTORS,
            PRECISION,
            stage != 1,
        )
    store_rows(
        d_key_ptr,
        d_key * softmax_scale,
        batch,
        head,
        first_key,
        num_keys,
        d_key_stride_b,
        d_key_stride_h,
        d_key_stride_n,
        BLOCK_N,
        HEAD_DIM,
        BLOCK_D,
    )
    store_rows(
        d_value_ptr,
        d_value,
        batch,
        head,
        first_key,
        num_keys,
        d_value_stride_b,
        d_value_stride_h,
        d_value_stride_n,
        BLOCK_N,
        HEAD_DIM,
        BLOCK_D,
    )
