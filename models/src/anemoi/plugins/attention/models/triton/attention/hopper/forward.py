# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Forward attention on Hopper, with explicit asynchrony."""

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

# Below every score, yet finite: a block without a visible key then leaves exp2(-inf - LOWEST) = 0 and no NaN.
LOWEST = gl.constexpr(-1.0e38)


@gluon.jit
def _softmax_step(
    products,
    maximum,
    normaliser,
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
    """Fold one block of dot products into the running maximum and sum; return its weights and the rescaling too."""
    num_queries, num_keys, left, right = limits
    if MASKED:
        position = first_query + (num_keys - num_queries) + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))[:, None]
        keys = first_key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))[None, :]
        products = gl.where(visible(position, keys, num_keys, left, right, WINDOWED), products, -float("inf"))
    new_maximum = gl.maximum(maximum, gl.max(products, 1) * factor)
    weights = gl.exp2(products * factor - new_maximum[:, None])
    rescale = gl.exp2(maximum - new_maximum)
    return weights, new_maximum, normaliser * rescale + gl.sum(weights, 1), rescale


@gluon.jit
def _steps(
    first,
    last,
    total,
    weights,
    accumulator,
    normaliser,
    maximum,
    query,
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
    """Form the weights of the key blocks ``first .. last``, and add what the block before each contributes.

    A matrix instruction whose operand registers are written while another is in flight makes the assembler serialise
    all of them. So the operand is formed while nothing is in flight, and runs under the next block's softmax.
    """
    key_ring, value_ring = rings
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SCORE_LAYOUT)
    for block in range(first, last):
        slot = block & (STAGES - 1)
        before = (block - 1) & (STAGES - 1)
        key = key_ring.index(slot).reshape([BLOCK_N, HEAD_DIM])
        value_before = value_ring.index(before).reshape([BLOCK_N, HEAD_DIM])
        mbarrier.wait(arrived.index(slot), (block // STAGES) & 1)
        operand = gl.convert_layout(weights.to(key.dtype), OPERAND_LAYOUT)
        scores = warpgroup_mma(query, key.permute((1, 0)), zeros, use_acc=False, is_async=True)
        sum_before = warpgroup_mma(operand, value_before, accumulator, is_async=True)
        products = warpgroup_mma_wait(1, deps=[scores])
        weights, maximum, normaliser, rescale = _softmax_step(
            products,
            maximum,
            normaliser,
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
        accumulator = warpgroup_mma_wait(0, deps=[sum_before])
        rescale = gl.convert_layout(rescale, gl.SliceLayout(1, accumulator.type.layout))
        accumulator = accumulator * rescale[:, None]
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
    return weights, accumulator, normaliser, maximum


@gluon.jit(do_not_specialize=RUN_TIME)
def _hopper_fwd_kernel(
    query_source,
    key_source,
    value_source,
    out_ptr,
    lse_ptr,
    out_stride_b,
    out_stride_h,
    out_stride_n,
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
    """Compute ``out`` and the log2-sum-exp2 of the scores for one block of queries of one head.

    As the portable kernel, but products overlap with the softmax, see ``_steps``.
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
    key_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_N, 1, HEAD_DIM], key_source.layout)
    value_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, BLOCK_N, 1, HEAD_DIM], value_source.layout)
    sources = (key_source, value_source)
    rings = (key_ring, value_ring)
    limits = (num_queries, num_keys, left, right)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(arrived.index(slot), count=1)
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, BLOCK_M * HEAD_DIM * 2)
    tma.async_copy_global_to_shared(query_source, [batch, first_query, head, 0], ready, query_tile)
    for block in gl.static_range(STAGES):
        copy_key_value(block, block < total, begin, batch, head, sources, rings, arrived, BLOCK_N, HEAD_DIM, STAGES)
    query = query_tile.reshape([BLOCK_M, HEAD_DIM])
    mbarrier.wait(ready, 0)
    if RESIDENT:
        query = query.load(gl.DotOperandLayout(0, score_layout, 2))
    mbarrier.wait(arrived.index(0), 0)

    factor = softmax_scale * LOG2_E
    accumulator = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, sum_layout)
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, score_layout)
    key = key_ring.index(0).reshape([BLOCK_N, HEAD_DIM])
    products = warpgroup_mma(query, key.permute((1, 0)), zeros, use_acc=False)
    weights, maximum, normaliser, _ = _softmax_step(
        products,
        gl.full([BLOCK_M], LOWEST, gl.float32, row_layout),
        gl.zeros([BLOCK_M], gl.float32, row_layout),
        begin,
        first_query,
        limits,
        factor,
        BLOCK_M,
        BLOCK_N,
        WINDOWED,
        score_layout,
        True,
    )
    full_begin = gl.maximum(masked_left, 1)
    full_end = gl.maximum(full, full_begin)
    for stage in gl.static_range(0 if WINDOWED else 1, 3):
        weights, accumulator, normaliser, maximum = _steps(
            1 if stage == 0 else (full_begin if stage == 1 else full_end),
            full_begin if stage == 0 else (full_end if stage == 1 else total),
            total,
            weights,
            accumulator,
            normaliser,
            maximum,
            query,
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
    value = value_ring.index((total - 1) & (STAGES - 1)).reshape([BLOCK_N, HEAD_DIM])
    operand = gl.convert_layout(weights.to(dtype), operand_layout)
    accumulator = warpgroup_mma(operand, value, accumulator)

    empty = normaliser == 0.0
    divisor = gl.convert_layout(gl.where(empty, 1.0, normaliser), gl.SliceLayout(1, sum_layout))
    store_rows(
        out_ptr,
        accumulator / divisor[:, None],
        batch,
        head,
        first_query,
        num_queries,
        out_stride_b,
        out_stride_h,
        out_stride_n,
        BLOCK_M,
        HEAD_DIM,
        NUM_WARPS,
    )
    rows = first_query + gl.arange(0, BLOCK_M, row_layout)
    lse = gl.where(empty | (rows >= num_queries), float("inf"), maximum + gl.log2(normaliser))
    gl.store(lse_ptr + batch_head.to(gl.int64) * lse_stride + rows, lse, mask=rows < lse_stride)
