# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The forward kernel of fused attention."""

import triton
import triton.language as tl

from .tiles import keep
from .tiles import load_rows
from .tiles import split_range
from .tiles import store_rows
from .tiles import transform_scores
from .tiles import visible

# Below every score, yet finite: a block without a visible key then leaves exp2(-inf - LOWEST) = 0 and no NaN.
LOWEST = tl.constexpr(-1.0e38)

RUN_TIME = ["num_heads", "num_queries", "num_keys", "left", "right", "lse_stride"]
"""Integers that must not cause a compilation when they change."""


@triton.jit
def _forward_steps(
    accumulator,
    normaliser,
    maximum,
    query,
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
    """Fold the key blocks from ``first`` to ``last`` into the running softmax of one query block."""
    query_index = first_query + tl.arange(0, BLOCK_M)[:, None]
    position = query_index + (num_keys - num_queries)
    for start in range(first, last, BLOCK_N):
        key_index = start + tl.arange(0, BLOCK_N)[None, :]
        key = load_rows(
            key_source, batch, head, start, num_keys, *key_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, MASKED
        )
        products = tl.dot(query, tl.trans(key), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
        scores, factor, _ = transform_scores(
            products, position, key_index, softmax_scale, softcap, slope, SOFTCAP, ALIBI
        )
        if MASKED:
            scores = tl.where(visible(position, key_index, num_keys, left, right, WINDOWED), scores, -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        normaliser = normaliser * rescale + tl.sum(weights, 1)
        accumulator = accumulator * rescale[:, None]
        if DROPOUT:
            kept = keep(seed, batch * num_heads + head, query_index, key_index, dropout_p)
            weights = tl.where(kept, weights, 0.0)
        value = load_rows(
            value_source, batch, head, start, num_keys, *value_strides, BLOCK_N, HEAD_DIM, BLOCK_D, DESCRIPTORS, MASKED
        )
        accumulator = tl.dot(weights.to(value.dtype), value, accumulator, input_precision=PRECISION)
        maximum = new_maximum
    return accumulator, normaliser, maximum


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_fwd_kernel(
    query_source,
    key_source,
    value_source,
    out_ptr,
    lse_ptr,
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
    out_stride_b,
    out_stride_h,
    out_stride_n,
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
    """Compute ``out`` and the log2-sum-exp2 of the scores for one block of queries of one head.

    Sums are fp32. Keys are visited in three runs: masked ones at the left edge of the window, those that every query
    of the block sees, masked ones at the right edge. A row without keys gets out 0 and LSE +inf.
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

    first_position = first_query + num_keys - num_queries
    last_position = tl.minimum(first_query + BLOCK_M, num_queries) - 1 + num_keys - num_queries
    begin, full_begin, full_end, end = split_range(
        first_position, last_position, num_keys, left, right, BLOCK_N, WINDOWED
    )
    accumulator = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    normaliser = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_M], LOWEST, tl.float32)
    for stage in tl.static_range(0 if WINDOWED else 1, 3):
        accumulator, normaliser, maximum = _forward_steps(
            accumulator,
            normaliser,
            maximum,
            query,
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

    empty = normaliser == 0.0
    kept_share = 1.0 - dropout_p if DROPOUT else 1.0
    out = accumulator / tl.where(empty, 1.0, normaliser * kept_share)[:, None]
    store_rows(
        out_ptr,
        out,
        batch,
        head,
        first_query,
        num_queries,
        out_stride_b,
        out_stride_h,
        out_stride_n,
        BLOCK_M,
        HEAD_DIM,
        BLOCK_D,
    )
    rows = first_query + tl.arange(0, BLOCK_M)
    lse = tl.where(empty | (rows >= num_queries), float("inf"), maximum + tl.log2(normaliser))
    tl.store(lse_ptr + tl.cast(batch_head, tl.int64) * lse_stride + rows, lse, mask=rows < lse_stride)
