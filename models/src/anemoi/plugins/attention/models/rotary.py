# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Rotary position embeddings, as the flash-attention path of anemoi-models applies them."""

from __future__ import annotations

import torch
from torch import Tensor

_BASE = 10000.0


def rotate(tensor: Tensor) -> Tensor:
    """Turn each row by angles that grow with its position.

    Element ``d`` and element ``d + D/2`` of row ``n`` are turned as a pair by ``n * 10000 ** (-2 d / D)``. Cosine and
    sine are rounded to the dtype of the tensor and the products are taken in fp32, as in flash-attention's
    ``RotaryEmbedding(dim=D)``. Queries and keys both count from 0.

    Parameters
    ----------
    tensor : Tensor
        ``[B, H, N, D]``, queries or keys; D is even.

    Returns
    -------
    Tensor
        The same shape and dtype.

    Raises
    ------
    ValueError
        If D is odd.

    References
    ----------
    Su et al. (2021), RoFormer, https://arxiv.org/abs/2104.09864
    """
    length, head_dim = tensor.shape[-2:]
    if head_dim % 2:
        raise ValueError(
            f"head_dim={head_dim} cannot be rotated: rotary embeddings turn pairs of elements. Allowed: an even "
            "head_dim. Change num_heads or the channels, or set use_rotary_embeddings to False."
        )
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    # Written as flash-attention writes it: at far positions, one unit in the last place turns a row visibly.
    frequencies = 1.0 / (_BASE ** (torch.arange(0, head_dim, 2, device=tensor.device, dtype=torch.float32) / head_dim))
    angles = torch.arange(length, device=tensor.device, dtype=torch.float32)[:, None] * frequencies
    cosine, sine = (part.to(tensor.dtype).to(dtype) for part in (angles.cos(), angles.sin()))
    first, second = tensor.to(dtype).chunk(2, dim=-1)
    turned = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.cat(turned, dim=-1).to(tensor.dtype)
