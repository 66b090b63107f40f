# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backward pass by source: gradients of keys and values."""

import triton
import triton.language as tl

from .tiles import RUN_TIME
from .tiles import edge_slots
from .tiles import load_index
from .tiles import load_rows
from .tiles import store_rows
from .tiles import tile_rows
from .tiles import weight_offsets


@triton.jit(do_not_specialize=RUN_TIME)
def _graph_attention_bwd_source_kernel(
    d_out_ptr,
    query_ptr,
    weights_ptr,
    d_scores_ptr,
    d_key_ptr,
    d_value_ptr,
    begin_ptr,
    end_ptr,
    edge_ptr,
    destination_ptr,
    d_out_stride,
    query_stride,
    num_nodes,
    num_edges,
    groups,
    split_above,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NODES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
    SINGLE: tl.constexpr,
):
    """Sum ``d_scores x query`` and ``weights x d_out`` over the edges of ``groups`` tiles of sources, in fp32.

    Nothing is recomputed, and every output row has one writer: no atomics. A source with more than ``split_above``
    edges is left out; its segments come as sources of their own, and a second kernel adds them up. A source without
    edges gets zeros.
    """
    head_blocks: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    head_block = tl.program_id(0) % head_blocks
    for group in range(0, groups):
        block = (tl.program_id(0) // head_blocks) * groups + group
        node, head, inside = tile_rows(block, head_block, num_nodes, NUM_HEADS, NODES, HEADS)
        begin = load_index(begin_ptr, node, inside)
        end = load_index(end_ptr, node, inside)
        inside = inside & (end - begin <= split_above)
        end = tl.where(inside, end, begin)
        d_key = tl.zeros([NODES * HEADS, 1, BLOCK_C], tl.float32)
        d_value = tl.zeros([NODES * HEADS, 1, BLOCK_C], tl.float32)
        steps = 1 if SINGLE else tl.cdiv(tl.max(end - begin), BLOCK_E)
        for step in tl.range(0, steps, num_stages=STAGES):
            position, valid = edge_slots(begin, end, step, BLOCK_E)
            edge = load_index(edge_ptr, position, valid)
            destination = load_index(destination_ptr, position, valid)
            offsets = weight_offsets(edge, head, num_edges)
            weights = tl.load(weights_ptr + offsets, mask=valid, other=0.0)
            d_scores = tl.load(d_scores_ptr + offsets, mask=valid, other=0.0)
            query = load_rows(query_ptr, destination, head, valid, query_stride, HEAD_DIM, BLOCK_C)
            d_out = load_rows(d_out_ptr, destination, head, valid, d_out_stride, HEAD_DIM, BLOCK_C)
            d_key += tl.sum(d_scores[:, :, None] * query.to(tl.float32), 1, keep_dims=True)
            d_value += tl.sum(weights[:, :, None] * d_out.to(tl.float32), 1, keep_dims=True)
        store_rows(d_key_ptr, d_key, node, head, inside, NUM_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_C)
        store_rows(d_value_ptr, d_value, node, head, inside, NUM_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_C)


@triton.jit
def _sum_segments_kernel(
    d_key_parts_ptr,
    d_value_parts_ptr,
    d_key_ptr,
    d_value_ptr,
    hub_ptr,
    hub_offsets_ptr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the segments of one source, in their order, for ``BLOCK`` of its ``H * C`` channels."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    hub = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    d_key = tl.zeros([BLOCK], tl.float32)
    d_value = tl.zeros([BLOCK], tl.float32)
    for segment in range(tl.load(hub_offsets_ptr + hub), tl.load(hub_offsets_ptr + hub + 1)):
        offsets = tl.cast(segment, tl.int64) * WIDTH + column
        d_key += tl.load(d_key_parts_ptr + offsets, mask=inside, other=0.0)
        d_value += tl.load(d_value_parts_ptr + offsets, mask=inside, other=0.0)
    offsets = tl.load(hub_ptr + hub).to(tl.int64) * WIDTH + column
    tl.store(d_key_ptr + offsets, d_key.to(d_key_ptr.dtype.element_ty), mask=inside)
    tl.store(d_value_ptr + offsets, d_value.to(d_value_ptr.dtype.element_ty), mask=inside)
