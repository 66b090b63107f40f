# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Gradient of the queries on Hopper, with explicit asynchrony."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from ..forward import RUN_TIME
from .tiles import LOG2_E
from .tiles import block_counts
from .tiles import copy_key_value
from .tiles import store_rows
from .tiles import visible


@gluon.jit
def _weights(
    products,
    lse,
    first_key,
    first_query,
    limits,
    factor,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WINDOWED: gl.constexpr,
    LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Recompute the softmax weights of a block from its dot products, ``[BLOCK_M, BLOCK_N]``."""
    num_queries, num_keys, left, right = limits
    weights = gl.exp2(products * factor - lse[:, None])
    if MASKED:
        position = first_query + (num_keys - num_queries) + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))[:, None]
        keys = first_key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))[None, :]
        weights = gl.where(visible(position, keys, num_keys, left, right, WINDOWED), weights, 0.0)
    return weights


@gluon.jit
def _steps(
    first,
    last,
    total,
    d_scores,
    d_query,
    query,
    d_out,
    lse,
    delta,
    begin,
    batch,
    head,
    first_query,
    sources,
    rings,
    arrived,
    limits,
    factor,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    WINDOWED: gl.constexpr,
    SCORE_LAYOUT: gl.constexpr,
    OPERAND_LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Form the gradients of the scores of the key blocks ``first .. last``, and add what the block before contributes.

    The order follows that of the forward kernel, for the same reason.
    """
    key_ring, value_ring = rings
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SCORE_LAYOUT)
    for block in range(first, last):
        slot = block & (STAGES - 1)
        before = (block - 1) & (STAGES - 1)
        key = key_ring.index(slot).reshape([BLOCK_N, HEAD_DIM])
        value = value_ring.index(slot).reshape([BLOCK_N, HEAD_DIM])
        key_before = key_ring.index(before).reshape([BLOCK_N, HEAD_DIM])
        mbarrier.wait(arrived.index(slot), (block // STAGES) & 1)
        operand = gl.convert_layout(d_scores.to(key.dtype), OPERAND_LAYOUT)
        scores = warpgroup_mma(query, key.permute((1, 0)), zeros, use_acc=False, is_async=True)
        d_weights = warpgroup_mma(d_out, value.permute((1, 0)), zeros, use_acc=False, is_async=True)
        sum_before = warpgroup_mma(operand, key_before, d_query, is_async=True)
        products = warpgroup_mma_wait(2, deps=[scores])
        weights = _weights(
            products,
            lse,
            begin + block * BLOCK_N,
            first_query,
            limits,
            factor,
            BLOCK_M,
            BLOCK_N,
            WINDOWED,
            SCORE_LAYOUT,
            MASKED,
        )
        d_products, d_query = warpgroup_mma_wait(0, deps=[d_weights, sum_before])
        d_scores = weights * (d_products - delta[:, None])
        # Every warp is through with the block before: its slot takes the block STAGES later.
        gl.thread_barrier()
        copy_key_value(
            block - 1 + STAGES,
            block - 1 + STAGES < total,
            begin,
            batch,
            head,
            sources,
            rings,
            arrived,
            BLOCK_N,
            HEAD_DIM,
            STAGES,
        )
    return d_scores, d_query


@gluon.jit(do_not_specialize=RUN_TIME)
def _hopper_bwd_query_kernel(
    query_source,
    key_source,
    value_source,
    d_out_source,
    out_source,
    lse_ptr,
    delta_ptr,
    d_query_ptr,
    d_query_stride_b,
    d_query_stride_h,
    d_query_stride_n,
    lse_stride,
    num_heads,
    num_queries,
    num_keys,
    left,
    right,
    softmax_scale,
    HEAD_DIM: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    WINDOWED: gl.constexpr,
    RESIDENT: gl.constexpr,
):
    """Compute ``d_query`` for one block of queries of one head, and the ``delta`` that the key kernel reads.

    As the portable kernel, but products overlap with the arithmetic between them, see ``_steps``.
    """
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, BLOCK_N, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, HEAD_DIM, 16])
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    num_blocks = (num_queries + BLOCK_M - 1) // BLOCK_M
    batch_head = gl.program_id(0) // num_blocks
    first_query = (gl.program_id(0) % num_blocks) * BLOCK_M
    batch = batch_head // num_heads
    head = batch_head % num_heads

    first_position = first_query + num_keys - num_queries
    last_position = gl.minimum(first_query + BLOCK_M, num_queries) - 1 + num_keys - num_queries
    begin, masked_left, full, total = block_counts(
        first_position, last_position, num_keys, left, right, BLOCK_N, WINDOWED
    )
    # The first block is taken outside the loops, masked: without any key it adds zeros.
    total = gl.maximum(total, 1)

    dtype: gl.constexpr = key_source.dtype
    query_tile = gl.allocate_shared_memory(dtype, [1, BLOCK_M, 1, HEAD_DIM], query_source.layout)
    d_out_tile = gl.allocate_shared_memory(dtype, [1, BLOCK_M, 1, HEAD_DIM], d_out_source.layout)
    key_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_N, 1, HEAD_DIM], key_source.layout)
    value_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_N, 1, HEAD_DIM], value_source.layout)
    out_tile = gl.allocate_shared_memory(dtype, [1, BLOCK_M, 1, HEAD_DIM], out_source.layout)
    sources = (key_source, value_source)
    rings = (key_ring, value_ring)
    limits = (num_queries, num_keys, left, right)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(arrived.index(slot), count=1)
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, 3 * BLOCK_M * HEAD_DIM * 2)
    tma.async_copy_global_to_shared(query_source, [batch, first_query, head, 0], ready, query_tile)
    tma.async_copy_global_to_shared(d_out_source, [batch, first_query, head, 0], ready, d_out_tile)
    tma.async_copy_global_to_shared(out_source, [batch, first_query, head, 0], ready, out_tile)
    for block in gl.static_range(STAGES):
        copy_key_value(block, block < total, begin, batch, head, sources, rings, arrived, BLOCK_N, HEAD_DIM, STAGES)
    query = query_tile.reshape([BLOCK_M, HEAD_DIM])
    d_out = d_out_tile.reshape([BLOCK_M, HEAD_DIM])
    mbarrier.wait(ready, 0)
    chunks: gl.constexpr = HEAD_DIM // 8
    flat_layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // chunks, chunks], [NUM_WARPS, 1], [1, 0])
    out = out_tile.reshape([BLOCK_M, HEAD_DIM]).load(flat_layout).to(gl.float32)
    delta = gl.convert_layout(gl.sum(out * d_out.load(flat_layout).to(gl.float32), 1), row_layout)
    rows = first_query + gl.arange(0, BLOCK_M, row_layout)
    row_offset = batch_head.to(gl.int64) * lse_stride
    gl.store(delta_ptr + row_offset + rows, delta, mask=rows < lse_stride)
    lse = gl.load(lse_ptr + row_offset + rows, mask=rows < num_queries, other=float("inf"))
    if RESIDENT:
        query = query.load(gl.DotOperandLayout(0, score_layout, 2))
        d_out = d_out.load(gl.DotOperandLayout(0, score_layout, 2))
    mbarrier.wait(arrived.index(0), 0)

    factor = softmax_scale * LOG2_E
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, score_layout)
    key = key_ring.index(0).reshape([BLOCK_N, HEAD_DIM])
    value = value_ring.index(0).reshape([BLOCK_N, HEAD_DIM])
    products = warpgroup_mma(query, key.permute((1, 0)), zeros, use_acc=False)
    d_products = warpgroup_mma(d_out, value.permute((1, 0)), zeros, use_acc=False)
    weights = _weights(
        products, lse, begin, first_query, limits, factor, BLOCK_M, BLOCK_N, WINDOWED, score_layout, True
    )
    d_scores = weights * (d_products - delta[:, None])
    d_query = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, sum_layout)
    full_begin = gl.maximum(masked_left, 1)
    full_end = gl.maximum(full, full_begin)
    for stage in gl.static_range(0 if WINDOWED else 1, 3):
        d_scores, d_query = _steps(
            1 if stage == 0 else (full_begin if stage == 1 else full_end),
            full_begin if stage == 0 else (full_end if stage == 1 else total),
            total,
            d_scores,
            d_query,
            query,
            d_out,
            lse,
            delta,
            begin,
            batch,
            head,
            first_query,
            sources,
            rings,
            arrived,
            limits,
            factor,
            BLOCK_M,
            BLOCK_N,
            HEAD_DIM,
            STAGES,
            WINDOWED,
            score_layout,
            operand_layout,
            stage != 1,
        )
    key = key_ring.index((total - 1) & (STAGES - 1)).reshape([BLOCK_N, HEAD_DIM])
    operand = gl.convert_layout(d_scores.to(dtype), operand_layout)
    d_query = warpgroup_mma(operand, key, d_query)
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
        NUM_WARPS,
    )
