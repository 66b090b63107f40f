# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""When a result in low precision counts as right."""

import torch
from torch import Tensor

ATOL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def assert_matches(
    got: Tensor, ref64: Tensor, eager_same_dtype: Tensor, what: str = "", magnitude: float = 1.0
) -> None:
    """Check that the largest error is at most twice that of plain torch in the same dtype, plus a small constant.

    Parameters
    ----------
    got : Tensor
        The result under test.
    ref64 : Tensor
        The same from the oracle, in float64.
    eager_same_dtype : Tensor
        The same from the oracle, in the dtype of ``got``.
    what : str
        Name of the quantity, for the message.
    magnitude : float
        Size of the inputs where it is above 1: what should cancel to zero is then rounded to this accuracy.
    """
    assert got.shape == ref64.shape
    allowed = 2.0 * _largest(eager_same_dtype.double() - ref64) + ATOL[got.dtype] * max(1.0, magnitude)
    error = _largest(got.double() - ref64)
    # NaN fails: it compares false.
    assert error <= allowed, f"{what or 'result'}: error {error:.3g}, allowed {allowed:.3g}"


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item() if difference.numel() else 0.0
