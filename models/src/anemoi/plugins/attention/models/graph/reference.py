# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The oracle: graph attention written out destination by destination, in the dtype of its inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_graph_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor, edge_index: Tensor) -> Tensor:
    """Compute graph attention with a loop over destinations; for tests.

    Parameters
    ----------
    query : Tensor
        ``[N_dst, H, C]``.
    key, value : Tensor
        ``[N_src, H, C]``.
    edges : Tensor
        ``[M, H, C]``.
    edge_index : Tensor
        ``[2, M]``: source and destination of each edge.

    Returns
    -------
    Tensor
        ``[N_dst, H, C]``, differentiable (twice); zeros where there is no edge.
    """
    source, destination = edge_index
    rows = []
    for node in range(query.shape[0]):
        mine = (destination == node).nonzero()[:, 0]
        scores = (query[node] * (key[source[mine]] + edges[mine])).sum(-1) / query.shape[2] ** 0.5  # [degree, H]
        weights = torch.softmax(scores, dim=0)
        rows.append((weights.unsqueeze(-1) * (value[source[mine]] + edges[mine])).sum(0))
    return torch.stack(rows) if rows else query.new_zeros(query.shape)
