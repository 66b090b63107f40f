# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backward kernel of fused attention for the gradient of the queries."""

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
def _query_steps(
    d_query,
    query,
    d_out,
    lse,
    delta,
    key_source,
    value_source,
    batch,
    head,
    first_query,
    first,
    last,
    key_strides,
    value_strides,
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
    """Add to ``d_query / softmax_scale`` what the key blocks from ``first`` to ``last`` contribute."""
    query_index = first_query + tl.arange(0, BLOCK_M)[:, None]
    position = query_index + (num_keys - num_queries)
    for start in range(first, last, BLOCK_N):
        key_index = start + tl.arange(0, BLOCK_N)[None, :]
        key = load_rows(
            key_source, batch, head, start, num_keys, *key_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, MASKED
        )
        value = load_rows(
            value_source, batch, head, start, num_keys, *value_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, MASKED
        )
        products = products_with(query, key, PRECISION)  # [BLOCK_M, BLOCK_N]
        d_weights = products_with(d_out, value, PRECISION)  # [BLOCK_M, BLOCK_N]
        scores, factor, tanh = transform_scores(
            products, position, key_index, softmax_scale, softcap, slope, SOFTCAP, ALIBI
        )
        weights = tl.exp2(scores * factor - lse[:, None])
        if MASKED:
            weights = tl.where(visible(position, key_index, num_keys, left, right, WINDOWED), weights, 0.0)
        if DROPOUT:
            kept = keep(seed, batch * num_heads + head, query_index, key_index, dropout_p)
            d_weights = tl.where(kept, d_weights / (1.0 - dropout_p), 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        if SOFTCAP:
            d_scores *= 1.0 - tanh * tanh
        d_query = tl.dot(d_scores.to(key.dtype), key, d_query, input_precision=PRECISION)
    return d_query


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_bwd_query_kernel(
    query_source,
    key_source,
    value_source,
    d_out_source,
    out_source,
    lse_ptr,
    delta_ptr,
    d_query_ptr,
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
    out_stride_b,
    out_stride_h,
    out_stride_n,
    d_query_stride_b,
    d_query_stride_h,
    d_query_stride_n,
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
    """Compute ``d_query`` for one block of queries of one head, and the ``delta`` that the key kernel reads.

    ``delta = sum(d_out * out)`` over the head dimension, in fp32, replaces the row sum of the softmax gradient. The
    weights are recomputed from the LSE. Sums are fp32; each row is written once, so the result is deterministic. A row
    without keys has LSE +inf, hence zero weights and a zero gradient.
    """
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    batch_head = tl.program_id(0) // num_blocks
    first_query = (tl.program_id(0) % num_blocks) * BLOCK_M
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
    out_strides = (out_stride_b, out_stride_h, out_stride_n)
    out = load_rows(
        out_source, batch, head, first_query, num_queries, *out_strides, BLOCK_M, HEAD_DIM, BLOCK_D, DESCRIPTORS, True
    )
    d_out = load_rows(
        d_out_source,
        batch,
        head,
        first_query,
        num_queries,
        *d_out_strides,
        BLOCK_M,
        HEAD_DIM,
        BLOCK_D,
        DESCRIPTORS,
        True,
    )
    query = load_rows(
        query_source,
        batch,
        head,
        first_query,
        num_queries,
        *query_strides,
        BLOCK_M,
        HEAD_DIM,
        BLOCK_D,
        DESCRIPTORS,
        True,
    )
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    rows = first_query + tl.arange(0, BLOCK_M)
    row_offset = tl.cast(batch_head, tl.int64) * lse_stride
    tl.store(delta_ptr + row_offset + rows, delta, mask=rows < lse_stride)
    lse = tl.load(lse_ptr + row_offset + rows, mask=rows < num_queries, other=float("inf"))

    first_position = first_query + num_keys - num_queries
    last_position = tl.minimum(first_query + BLOCK_M, num_queries) - 1 + num_keys - num_queries
    begin, full_begin, full_end, end = split_range(
        first_position, last_position, num_keys, left, right, BLOCK_N, WINDOWED
    )
    d_query = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for stage in tl.static_range(0 if WINDOWED else 1, 3):
        d_query = _query_steps(
            d_query,
            query,
            d_out,
            lse,
            delta,
            key_source,
            value_source,
            batch,
            head,
            first_query,
            begin if stage == 0 else (full_begin if stage == 1 else full_end),
            tl.minimum(full_begin, end) if stage == 0 else (full_end if stage == 1 else end),
            key_strides,
            value_strides,
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
        d_query_ptr,
        d_query * softmax_scale,
        batch,
        head,
        first_query,
        num_queries,
        d_query_stride_b,
        d_query_stride_h,
        d_query_stride_n,
        BLOCK_M,
        HEAD_DIM,
        BLOCK_D,
    )
