# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Graph-transformer attention in Triton: forward, backward, and the operators around them.

``tiles`` holds what the kernels share, ``forward`` and ``backward_*`` the kernels, ``configurations`` the tile sizes,
``launch`` the way from tensors to launches, ``op`` the torch operators.
"""

from .op import fused_graph_attention
from .op import fused_graph_attention_factorised
from .op import unsupported_reasons

__all__ = ["fused_graph_attention", "fused_graph_attention_factorised", "unsupported_reasons"]
