# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The forward kernel of graph attention."""

import triton
import triton.language as tl

from .tiles import LOG2_E
from .tiles import LOWEST
from .tiles import RUN_TIME
from .tiles import dot_stored
from .tiles import dot_summed
from .tiles import edge_row
from .tiles import edge_slots
from .tiles import load_attributes
from .tiles import load_index
from .tiles import load_rows
from .tiles import load_weight
from .tiles import store_rows
from .tiles import tile_rows


@triton.jit(do_not_specialize=RUN_TIME)
def _graph_attention_fwd_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    edges_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    offsets_ptr,
    source_ptr,
    edge_row_ptr,
    query_stride,
    key_stride,
    value_stride,
    edges_stride,
    attributes_stride,
    num_nodes,
    groups,
    scale,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_ATTRIBUTES: tl.constexpr,
    NODES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
    SINGLE: tl.constexpr,
    PERMUTED: tl.constexpr,
    FACTORISED: tl.constexpr,
):
    """Compute ``out`` for ``groups`` tiles of ``NODES`` consecutive destinations and ``HEADS`` heads.

    Rows of a tile are (destination, head); each takes ``BLOCK_E`` of its edges a step, with an online softmax in fp32.
    Neighbouring destinations share sources, which the first-level cache then serves. A destination without edges gets
    zeros. ``SINGLE``: no destination has more than ``BLOCK_E`` edges. ``FACTORISED``: ``edges`` are attributes
    ``[M, A]``; a product with ``weight`` then takes the place of the projected edge, per destination instead of per
    edge. The bias shifts all scores of a destination alike, so that it enters ``out`` alone.
    """
    head_blocks: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    head_block = tl.program_id(0) % head_blocks
    if FACTORISED:
        weight = load_weight(weight_ptr, head_block, HEAD_DIM, NUM_ATTRIBUTES, BLOCK_C, PARTS * LANES)
        channel = tl.arange(0, BLOCK_C)
        bias = tl.load(bias_ptr + head_block * HEAD_DIM + channel, mask=channel < HEAD_DIM, other=0.0).to(tl.float32)
    for group in range(0, groups):
        block = (tl.program_id(0) // head_blocks) * groups + group
        node, head, inside = tile_rows(block, head_block, num_nodes, NUM_HEADS, NODES, HEADS)
        start = load_index(offsets_ptr, node, inside)
        end = load_index(offsets_ptr, node + 1, inside)
        stored_query = load_rows(query_ptr, node, head, inside, query_stride, HEAD_DIM, BLOCK_C)
        query = stored_query.to(tl.float32)  # [rows, 1, C]
        if FACTORISED:
            query_projected = dot_stored(tl.reshape(stored_query, [NODES, BLOCK_C]), weight)
            query_projected = tl.reshape(query_projected, [NODES, 1, PARTS, LANES])
            attribute_sum = tl.zeros([NODES, 1, PARTS, LANES], tl.float32)
        accumulator = tl.zeros([NODES * HEADS, 1, BLOCK_C], tl.float32)
        normaliser = tl.zeros([NODES * HEADS, 1], tl.float32)
        maximum = tl.full([NODES * HEADS, 1], LOWEST, tl.float32)
        steps = 1 if SINGLE else tl.cdiv(tl.max(end - start), BLOCK_E)
        for step in tl.range(0, steps, num_stages=STAGES):
            position, valid = edge_slots(start, end, step, BLOCK_E)
            source = load_index(source_ptr, position, valid)
            row = edge_row(edge_row_ptr, position, valid, PERMUTED)
            if FACTORISED:
                attributes = load_attributes(edges_ptr, row, valid, attributes_stride, NUM_ATTRIBUTES, PARTS, LANES)
            key = load_rows(key_ptr, source, head, valid, key_stride, HEAD_DIM, BLOCK_C)
            value = load_rows(value_ptr, source, head, valid, value_stride, HEAD_DIM, BLOCK_C)
            if FACTORISED:
                scores = tl.sum(query * key.to(tl.float32), 2)
                scores += tl.sum(tl.sum(query_projected * attributes, 3), 2)
                value = value.to(tl.float32)
            else:
                edge = load_rows(edges_ptr, row, head, valid, edges_stride, HEAD_DIM, BLOCK_C).to(tl.float32)
                scores = tl.sum(query * (key.to(tl.float32) + edge), 2)
                value = value.to(tl.float32) + edge
            scores = tl.where(valid, scores * (scale * LOG2_E), -float("inf"))  # [rows, BLOCK_E]
            new_maximum = tl.maximum(maximum, tl.max(scores, 1, keep_dims=True))
            weights = tl.exp2(scores - new_maximum)
            rescale = tl.exp2(maximum - new_maximum)
            normaliser = normaliser * rescale + tl.sum(weights, 1, keep_dims=True)
            accumulator *= rescale[:, :, None]
            accumulator += tl.sum(weights[:, :, None] * value, 1, keep_dims=True)
            if FACTORISED:
                attribute_sum *= rescale[:, :, None, None]
                attribute_sum += tl.sum(weights[:, :, None, None] * attributes, 1, keep_dims=True)
            maximum = new_maximum
        occupied = normaliser > 0.0
        inverse = 1.0 / tl.where(occupied, normaliser, 1.0)
        out = accumulator * inverse[:, :, None]
        if FACTORISED:
            mean_attributes = tl.reshape(attribute_sum * inverse[:, :, None, None], [NODES, PARTS * LANES])
            projected = dot_summed(weight, tl.trans(mean_attributes), tl.zeros([BLOCK_C, NODES], tl.float32))
            out += tl.reshape(tl.trans(projected), [NODES, 1, BLOCK_C])
            out += tl.where(occupied[:, :, None], bias[None, None, :], 0.0)
        store_rows(out_ptr, out, node, head, inside, NUM_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_C)
