# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backward pass by edge: gradients of the attributes of factorised edges."""

import triton
import triton.language as tl

from .tiles import RUN_TIME
from .tiles import edge_row
from .tiles import load_index
from .tiles import load_rows
from .tiles import store_rows


@triton.jit(do_not_specialize=RUN_TIME)
def _graph_attention_bwd_attributes_kernel(
    weights_ptr,
    d_scores_ptr,
    query_projected_ptr,
    d_out_projected_ptr,
    d_attributes_ptr,
    destination_ptr,
    edge_row_ptr,
    num_edges,
    NUM_HEADS: tl.constexpr,
    NUM_ATTRIBUTES: tl.constexpr,
    EDGES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    PERMUTED: tl.constexpr,
):
    """Sum ``d_scores (W^T query) + weights (W^T d_out)`` over the heads for ``EDGES`` edges, in fp32."""
    position = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    inside = position < num_edges
    destination = load_index(destination_ptr, position, inside)
    total = tl.zeros([EDGES, BLOCK_A], tl.float32)
    for first_head in tl.static_range(0, NUM_HEADS, HEADS):
        head = (first_head + tl.arange(0, HEADS))[None, :]
        valid = inside[:, None] & (head < NUM_HEADS)
        offsets = head.to(tl.int64) * num_edges + position[:, None]
        weights = tl.load(weights_ptr + offsets, mask=valid, other=0.0)[:, :, None]
        d_scores = tl.load(d_scores_ptr + offsets, mask=valid, other=0.0)[:, :, None]
        stride = NUM_HEADS * NUM_ATTRIBUTES
        node = destination[:, None]
        query = load_rows(query_projected_ptr, node, head, valid, stride, NUM_ATTRIBUTES, BLOCK_A).to(tl.float32)
        d_out = load_rows(d_out_projected_ptr, node, head, valid, stride, NUM_ATTRIBUTES, BLOCK_A).to(tl.float32)
        total += tl.sum(d_scores * query + weights * d_out, 1)
    row = edge_row(edge_row_ptr, position, inside, PERMUTED)
    store_rows(d_attributes_ptr, total, row, 0, inside, NUM_ATTRIBUTES, NUM_ATTRIBUTES, BLOCK_A)
