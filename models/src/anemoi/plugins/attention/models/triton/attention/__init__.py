# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fused attention in Triton: forward, backward, and the operator around them.

``tiles`` holds what the kernels share, ``forward`` and ``backward_*`` the portable kernels, ``hopper`` those that are
faster on an H100 or H200, ``configurations`` the tile sizes of each architecture, ``calls`` and ``launch`` the way from
tensors to launches, ``dropout`` the mask of the dropout, ``op`` the torch operator.
"""

from .dropout import dropout_mask
from .op import fused_attention
from .op import unsupported_reasons

__all__ = ["dropout_mask", "fused_attention", "unsupported_reasons"]
