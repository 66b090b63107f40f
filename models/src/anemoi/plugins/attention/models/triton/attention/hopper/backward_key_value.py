# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Gradients of keys and values on Hopper, with explicit asynchrony."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from ..forward import RUN_TIME
from .tiles import LOG2_E
from .tiles import block_counts
from .tiles import store_rows


@gluon.jit
def _copy_block(
    block,
    needed,
    begin,
    batch,
    head,
    num_heads,
    sources,
    rings,
    arrived,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Start the copies of one block of queries into its slot of the rings."""
    query_source, d_out_source, lse_source, delta_source = sources
    query_ring, d_out_ring, lse_ring, delta_ring = rings
    slot = block & (STAGES - 1)
    barrier = arrived.index(slot)
    row = begin + block * BLOCK_M
    mbarrier.expect(barrier, 2 * BLOCK_M * HEAD_DIM * 2 + 2 * BLOCK_M * 4, pred=needed)
    tma.async_copy_global_to_shared(query_source, [batch, row, head, 0], barrier, query_ring.index(slot), pred=needed)
    tma.async_copy_global_to_shared(d_out_source, [batch, row, head, 0], barrier, d_out_ring.index(slot), pred=needed)
    batch_head = batch * num_heads + head
    tma.async_copy_global_to_shared(lse_source, [batch_head, row], barrier, lse_ring.index(slot), pred=needed)
    tma.async_copy_global_to_shared(delta_source, [batch_head, row], barrier, delta_ring.index(slot), pred=needed)


@gluon.jit
def _weights(
    products,
    lse,
    first_query,
    first_key,
    limits,
    factor,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WINDOWED: gl.constexpr,
    LAYOUT: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Recompute the softmax weights of a block from its dot products, ``[BLOCK_N, BLOCK_M]``.

    Only the window needs a mask: queries beyond the end were read as zeros and add none, keys beyond it are not stored.
    """
    num_queries, num_keys, left, right = limits
    weights = gl.exp2(products * factor - lse)
    if WINDOWED and MASKED:
        rows = first_query + gl.arange(0, BLOCK_M, gl.SliceLayout(0, LAYOUT))[None, :]
        keys = first_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT))[:, None]
        offset = keys - (rows + (num_keys - num_queries))
        weights = gl.where((offset >= -left) & (offset <= right), weights, 0.0)
    return weights


@gluon.jit
def _steps(
    first,
    last,
    total,
    weights,
    d_scores,
    d_key,
    d_value,
    key,
    value,
    begin,
    batch,
    head,
    first_key,
    sources,
    rings,
    arrived,
    num_heads,
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
    """Form the operands of the query blocks ``first .. last``, and add what the block before each contributes.

    A matrix instruction whose operand registers are written while another is in flight makes the assembler serialise
    all of them, and so does reading a result across the end of an iteration. Hence operands are formed while nothing
    is in flight, and the sums of one block run under the exponentials of the next.
    """
    query_ring, d_out_ring, lse_ring, delta_ring = rings
    zeros = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, SCORE_LAYOUT)
    for block in range(first, last):
        slot = block & (STAGES - 1)
        before = (block - 1) & (STAGES - 1)
        query = query_ring.index(slot).reshape([BLOCK_M, HEAD_DIM])
        d_out = d_out_ring.index(slot).reshape([BLOCK_M, HEAD_DIM])
        query_before = query_ring.index(before).reshape([BLOCK_M, HEAD_DIM])
        d_out_before = d_out_ring.index(before).reshape([BLOCK_M, HEAD_DIM])
        mbarrier.wait(arrived.index(slot), (block // STAGES) & 1)
        weights_operand = gl.convert_layout(weights.to(query.dtype), OPERAND_LAYOUT)
        d_scores_operand = gl.convert_layout(d_scores.to(query.dtype), OPERAND_LAYOUT)
        scores = warpgroup_mma(key, query.permute((1, 0)), zeros, use_acc=False, is_async=True)
        d_weights = warpgroup_mma(value, d_out.permute((1, 0)), zeros, use_acc=False, is_async=True)
        d_value_sum = warpgroup_mma(weights_operand, d_out_before, d_value, is_async=True)
        d_key_sum = warpgroup_mma(d_scores_operand, query_before, d_key, is_async=True)
        lse = lse_ring.index(slot).load(SCORE_LAYOUT)
        products = warpgroup_mma_wait(3, deps=[scores])
        weights = _weights(
            products,
            lse,
            begin + block * BLOCK_M,
            first_key,
            limits,
            factor,
            BLOCK_M,
            BLOCK_N,
            WINDOWED,
            SCORE_LAYOUT,
            MASKED,
        )
        delta = delta_ring.index(slot).load(SCORE_LAYOUT)
        d_products, d_value, d_key = warpgroup_mma_wait(0, deps=[d_weights, d_value_sum, d_key_sum])
        d_scores = weights * (d_products - delta)
        # Every warp is through with the block before: its slot takes the block STAGES later.
        gl.thread_barrier()
        _copy_block(
            block - 1 + STAGES,
            block - 1 + STAGES < total,
            begin,
            batch,
            head,
            num_heads,
            sources,
            rings,
            arrived,
            BLOCK_M,
            HEAD_DIM,
            STAGES,
        )
    return weights, d_scores, d_key, d_value


@gluon.jit(do_not_specialize=RUN_TIME)
def _hopper_bwd_key_value_kernel(
    query_source,
    key_source,
    value_source,
    d_out_source,
    lse_source,
    delta_source,
    d_key_ptr,
    d_value_ptr,
    d_key_stride_b,
    d_key_stride_h,
    d_key_stride_n,
    d_value_stride_b,
    d_value_stride_h,
    d_value_stride_n,
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
    """Compute ``d_key`` and ``d_value`` for one block of keys of one head.

    As the portable kernel, but products overlap with the arithmetic between them, see ``_steps``.
    """
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, BLOCK_M, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, HEAD_DIM, 16])
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    num_blocks = (num_keys + BLOCK_N - 1) // BLOCK_N
    batch_head = gl.program_id(0) // num_blocks
    first_key = (gl.program_id(0) % num_blocks) * BLOCK_N
    batch = batch_head // num_heads
    head = batch_head % num_heads

    alignment = num_keys - num_queries
    last_key = gl.minimum(first_key + BLOCK_N, num_keys) - 1
    begin, masked_left, full, total = block_counts(
        first_key - alignment, last_key - alignment, num_queries, right, left, BLOCK_M, WINDOWED
    )
    # The first block is taken outside the loops, masked: without any query it adds zeros.
    total = gl.maximum(total, 1)

    dtype: gl.constexpr = key_source.dtype
    key_tile = gl.allocate_shared_memory(dtype, [1, BLOCK_N, 1, HEAD_DIM], key_source.layout)
    value_tile = gl.allocate_shared_memory(dtype, [1, BLOCK_N, 1, HEAD_DIM], value_source.layout)
    query_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_M, 1, HEAD_DIM], query_source.layout)
    d_out_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_M, 1, HEAD_DIM], d_out_source.layout)
    lse_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_source.layout)
    delta_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_source.layout)
    sources = (query_source, d_out_source, lse_source, delta_source)
    rings = (query_ring, d_out_ring, lse_ring, delta_ring)
    limits = (num_queries, num_keys, left, right)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(arrived.index(slot), count=1)
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, 2 * BLOCK_N * HEAD_DIM * 2)
    tma.async_copy_global_to_shared(key_source, [batch, first_key, head, 0], ready, key_tile)
    tma.async_copy_global_to_shared(value_source, [batch, first_key, head, 0], ready, value_tile)
    for block in gl.static_range(STAGES):
        _copy_block(
            block, block < total, begin, batch, head, num_heads, sources, rings, arrived, BLOCK_M, HEAD_DIM, STAGES
        )
    key = key_tile.reshape([BLOCK_N, HEAD_DIM])
    value = value_tile.reshape([BLOCK_N, HEAD_DIM])
    mbarrier.wait(ready, 0)
    if RESIDENT:
        key = key.load(gl.DotOperandLayout(0, score_layout, 2))
        value = value.load(gl.DotOperandLayout(0, score_layout, 2))
    mbarrier.wait(arrived.index(0), 0)

    zeros = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, score_layout)
    query = query_ring.index(0).reshape([BLOCK_M, HEAD_DIM])
    d_out = d_out_ring.index(0).reshape([BLOCK_M, HEAD_DIM])
    products = warpgroup_mma(key, query.permute((1, 0)), zeros, use_acc=False)
    d_products = warpgroup_mma(value, d_out.permute((1, 0)), zeros, use_acc=False)
    lse = lse_ring.index(0).load(score_layout)
    factor = softmax_scale * LOG2_E
    weights = _weights(products, lse, begin, first_key, limits, factor, BLOCK_M, BLOCK_N, WINDOWED, score_layout, True)
    d_scores = weights * (d_products - delta_ring.index(0).load(score_layout))
    d_key = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, sum_layout)
    d_value = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, sum_layout)
    full_begin = gl.maximum(masked_left, 1)
    full_end = gl.maximum(full, full_begin) if WINDOWED else total
    for stage in gl.static_range(0 if WINDOWED else 1, 3 if WINDOWED else 2):
        weights, d_scores, d_key, d_value = _steps(
            1 if stage == 0 else (full_begin if stage == 1 else full_end),
            full_begin if stage == 0 else (full_end if stage == 1 else total),
            total,
            weights,
            d_scores,
            d_key,
            d_value,
            key,
            value,
            begin,
            batch,
            head,
            first_key,
            sources,
            rings,
            arrived,
            num_heads,
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
    weights_operand = gl.convert_layout(weights.to(dtype), operand_layout)
    d_scores_operand = gl.convert_layout(d_scores.to(dtype), operand_layout)
    slot = (total - 1) & (STAGES - 1)
    d_out = d_out_ring.index(slot).reshape([BLOCK_M, HEAD_DIM])
    query = query_ring.index(slot).reshape([BLOCK_M, HEAD_DIM])
    d_value = warpgroup_mma(weights_operand, d_out, d_value, is_async=True)
    d_key = warpgroup_mma(d_scores_operand, query, d_key, is_async=True)
    d_value, d_key = warpgroup_mma_wait(0, deps=[d_value, d_key])
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
        NUM_WARPS,
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
        NUM_WARPS,
    )
