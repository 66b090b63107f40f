# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Fused attention in Triton: forward, backward, and the operator around them.

``tiles`` holds what the kernels share, ``forward`` and ``backward_*`` the portable kernels, ``hopper`` those that are
faster on an H100 or H200, ``tables`` the tile sizes of each architecture and ``configurations`` their look-up,
``calls`` and ``launch`` the way from tensors to launches, ``dropout`` the mask of the dropout, ``op`` the operator.
``tuning``, ``candidates`` and ``configuration_file`` are the opt-in tuner. Without a Triton that serves, ``absent``
stands in.
"""

from ..requirement import triton_problem

if triton_problem() is None:
    from .configurations import load as load_configurations
    from .dropout import dropout_mask
    from .op import fused_attention
    from .op import unsupported_reasons
    from .tuning import tune
else:
    from .absent import dropout_mask
    from .absent import fused_attention
    from .absent import load_configurations
    from .absent import tune
    from .absent import unsupported_reasons  # type: ignore[assignment]

__all__ = ["dropout_mask", "fused_attention", "load_configurations", "tune", "unsupported_reasons"]
