# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backward pass by destination: gradients of queries and edges, and the weights that the other passes need."""

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
from .tiles import weight_offsets


@triton.jit(do_not_specialize=RUN_TIME)
def _graph_attention_bwd_destination_kernel(
    d_out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    edges_ptr,
    weight_ptr,
    d_query_ptr,
    d_edges_ptr,
    weights_ptr,
    d_scores_ptr,
    query_projected_ptr,
    d_out_projected_ptr,
    d_weight_ptr,
    offsets_ptr,
    source_ptr,
    edge_row_ptr,
    d_out_stride,
    query_stride,
    key_stride,
    value_stride,
    edges_stride,
    attributes_stride,
    num_nodes,
    num_edges,
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
    D_EDGES: tl.constexpr,
):
    """Compute what belongs to ``groups`` tiles of ``NODES`` consecutive destinations and ``HEADS`` heads.

    Written are ``d_query``, the softmax ``weights`` and the gradients ``d_scores`` (times the scale) as ``[H, M]`` in
    fp32, and ``d_edges`` if ``D_EDGES``. When ``FACTORISED``, also this program's share ``[P, H, C, A + 1]`` of
    ``d_weight`` (last column: ``d_bias``) and, if ``D_EDGES``, the products of query and d_out with the weight, of
    which the pass by edge makes the attributes' gradient.

    Keys, values and edges are gathered once. The softmax is computed anew rather than from a stored normaliser:
    recomputed scores of size 1e8 differ from the stored ones by whole units. With weights p and gradients g of the
    weights, ``d_scores = p (g - mean g)``; the mean is known after the last edge alone, so that the sum of
    ``p (g - mean g) key`` is kept centred about the mean so far (Welford's update of a covariance). Subtracting two
    large sums at the end would lose what cancels.
    """
    head_blocks: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    head_block = tl.program_id(0) % head_blocks
    if FACTORISED:
        weight = load_weight(weight_ptr, head_block, HEAD_DIM, NUM_ATTRIBUTES, BLOCK_C, PARTS * LANES)
        d_weight = tl.zeros([BLOCK_C, PARTS * LANES], tl.float32)
        attribute = tl.arange(0, PARTS * LANES)
    for group in range(0, groups):
        block = (tl.program_id(0) // head_blocks) * groups + group
        node, head, inside = tile_rows(block, head_block, num_nodes, NUM_HEADS, NODES, HEADS)
        start = load_index(offsets_ptr, node, inside)
        end = load_index(offsets_ptr, node + 1, inside)
        stored_query = load_rows(query_ptr, node, head, inside, query_stride, HEAD_DIM, BLOCK_C)
        stored_d_out = load_rows(d_out_ptr, node, head, inside, d_out_stride, HEAD_DIM, BLOCK_C)
        query = stored_query.to(tl.float32)  # [rows, 1, C]
        d_out = stored_d_out.to(tl.float32)
        if FACTORISED:
            query_projected = dot_stored(tl.reshape(stored_query, [NODES, BLOCK_C]), weight)
            d_out_projected = dot_stored(tl.reshape(stored_d_out, [NODES, BLOCK_C]), weight)
            if D_EDGES:
                pointers = (node.to(tl.int64) * NUM_HEADS + head) * NUM_ATTRIBUTES + attribute[None, :]
                present = inside & (attribute < NUM_ATTRIBUTES)[None, :]
                dtype = query_projected_ptr.dtype.element_ty
                tl.store(query_projected_ptr + pointers, query_projected.to(dtype), mask=present)
                tl.store(d_out_projected_ptr + pointers, d_out_projected.to(dtype), mask=present)
            query_projected = tl.reshape(query_projected, [NODES, 1, PARTS, LANES])
            d_out_projected = tl.reshape(d_out_projected, [NODES, 1, PARTS, LANES])
            attribute_covariance = tl.zeros([NODES, 1, PARTS, LANES], tl.float32)
            attribute_sum = tl.zeros([NODES, 1, PARTS, LANES], tl.float32)
        key_covariance = tl.zeros([NODES * HEADS, 1, BLOCK_C], tl.float32)
        key_sum = tl.zeros([NODES * HEADS, 1, BLOCK_C], tl.float32)
        mean = tl.zeros([NODES * HEADS, 1], tl.float32)
        normaliser = tl.zeros([NODES * HEADS, 1], tl.float32)
        maximum = tl.full([NODES * HEADS, 1], LOWEST, tl.float32)
        scores = tl.zeros([NODES * HEADS, BLOCK_E], tl.float32)
        d_weights = tl.zeros([NODES * HEADS, BLOCK_E], tl.float32)
        steps = 1 if SINGLE else tl.cdiv(tl.max(end - start), BLOCK_E)
        for step in tl.range(0, steps, num_stages=STAGES):
            position, valid = edge_slots(start, end, step, BLOCK_E)
            source = load_index(source_ptr, position, valid)
            row = edge_row(edge_row_ptr, position, valid, PERMUTED)
            if FACTORISED:
                attributes = load_attributes(edges_ptr, row, valid, attributes_stride, NUM_ATTRIBUTES, PARTS, LANES)
            key = load_rows(key_ptr, source, head, valid, key_stride, HEAD_DIM, BLOCK_C).to(tl.float32)
            value = load_rows(value_ptr, source, head, valid, value_stride, HEAD_DIM, BLOCK_C).to(tl.float32)
            if FACTORISED:
                scores = tl.sum(query * key, 2) + tl.sum(tl.sum(query_projected * attributes, 3), 2)
                d_weights = tl.sum(d_out * value, 2) + tl.sum(tl.sum(d_out_projected * attributes, 3), 2)
            else:
                edge = load_rows(edges_ptr, row, head, valid, edges_stride, HEAD_DIM, BLOCK_C).to(tl.float32)
                key += edge
                scores = tl.sum(query * key, 2)
                d_weights = tl.sum(d_out * (value + edge), 2)
            scores = tl.where(valid, scores * (scale * LOG2_E), -float("inf"))  # [rows, BLOCK_E]
            if not SINGLE:
                # Kept where the final numbers go, for the second run over the edges.
                offsets = weight_offsets(position, head, num_edges)
                tl.store(weights_ptr + offsets, scores, mask=valid)
                tl.store(d_scores_ptr + offsets, d_weights, mask=valid)
            new_maximum = tl.maximum(maximum, tl.max(scores, 1, keep_dims=True))
            weights = tl.exp2(scores - new_maximum)
            rescale = tl.exp2(maximum - new_maximum)
            before = normaliser * rescale
            normaliser = before + tl.sum(weights, 1, keep_dims=True)
            new_mean = before * mean + tl.sum(weights * d_weights, 1, keep_dims=True)
            new_mean = new_mean / tl.where(normaliser > 0.0, normaliser, 1.0)
            shift = mean - new_mean
            centred = weights * (d_weights - new_mean)
            if not SINGLE:
                key_covariance = (key_covariance + shift[:, :, None] * key_sum) * rescale[:, :, None]
                key_sum = key_sum * rescale[:, :, None] + tl.sum(weights[:, :, None] * key, 1, keep_dims=True)
            key_covariance += tl.sum(centred[:, :, None] * key, 1, keep_dims=True)
            if FACTORISED:
                attribute_covariance += shift[:, :, None, None] * attribute_sum
                attribute_covariance *= rescale[:, :, None, None]
                attribute_covariance += tl.sum(centred[:, :, None, None] * attributes, 1, keep_dims=True)
                attribute_sum *= rescale[:, :, None, None]
                attribute_sum += tl.sum(weights[:, :, None, None] * attributes, 1, keep_dims=True)
            mean = new_mean
            maximum = new_maximum

        occupied = normaliser > 0.0
        inverse = 1.0 / tl.where(occupied, normaliser, 1.0)
        d_query = key_covariance * (scale * inverse)[:, :, None]
        if FACTORISED:
            d_scores_attributes = attribute_covariance * (scale * inverse)[:, :, None, None]
            d_scores_attributes = tl.reshape(d_scores_attributes, [NODES, PARTS * LANES])
            weights_attributes = tl.reshape(attribute_sum * inverse[:, :, None, None], [NODES, PARTS * LANES])
            # The bias is the weight of one attribute more, which is 1 at every edge.
            one = (attribute == NUM_ATTRIBUTES)[None, :] & occupied
            weights_attributes = tl.where(one, 1.0, weights_attributes)
            projected = dot_summed(weight, tl.trans(d_scores_attributes), tl.zeros([BLOCK_C, NODES], tl.float32))
            d_query += tl.reshape(tl.trans(projected), [NODES, 1, BLOCK_C])
            d_weight = dot_summed(tl.trans(tl.reshape(stored_query, [NODES, BLOCK_C])), d_scores_attributes, d_weight)
            d_weight = dot_summed(tl.trans(tl.reshape(stored_d_out, [NODES, BLOCK_C])), weights_attributes, d_weight)
        store_rows(d_query_ptr, d_query, node, head, inside, NUM_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_C)

        if not SINGLE:
            tl.debug_barrier()
        for step in range(0, steps):
            position, valid = edge_slots(start, end, step, BLOCK_E)
            offsets = weight_offsets(position, head, num_edges)
            if not SINGLE:
                scores = tl.load(weights_ptr + offsets, mask=valid, other=-float("inf"))
                d_weights = tl.load(d_scores_ptr + offsets, mask=valid, other=0.0)
                # Threads that hold copies of a number have read it before one of them overwrites it.
                tl.debug_barrier()
            weights = tl.exp2(scores - maximum) * inverse
            d_scores = weights * (d_weights - mean) * scale
            tl.store(weights_ptr + offsets, weights, mask=valid)
            tl.store(d_scores_ptr + offsets, d_scores, mask=valid)
            if D_EDGES and not FACTORISED:
                row = edge_row(edge_row_ptr, position, valid, PERMUTED)
                d_edge = d_scores[:, :, None] * query + weights[:, :, None] * d_out
                store_rows(d_edges_ptr, d_edge, row, head, valid, NUM_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_C)

    if FACTORISED:
        share = tl.program_id(0).to(tl.int64) * HEAD_DIM + tl.arange(0, BLOCK_C)
        pointers = d_weight_ptr + (share[:, None] * (NUM_ATTRIBUTES + 1) + attribute[None, :])
        present = (tl.arange(0, BLOCK_C) < HEAD_DIM)[:, None] & (attribute <= NUM_ATTRIBUTES)[None, :]
        tl.store(pointers, d_weight, mask=present)
