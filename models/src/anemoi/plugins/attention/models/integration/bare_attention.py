# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention of anemoi-models before 0.4, where a layer holds a bare function and no name of a backend."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ..functional import attention


class BareAttention:
    """A backend of this package behind the call of the function that the oldest layers hold.

    It is no module, as the host's function is none: the layer's modules stay what they are. It is pickled as the
    function of torch, so that the layer opens where this package is not installed.

    Parameters
    ----------
    backend : str
        Canonical name of a transformer backend.
    window_size : int, pair of int or None
        Window of the layer; the call without flash-attention does not pass it.
    """

    def __init__(self, backend: str, window_size: Any) -> None:
        self.backend = backend
        self.window_size = window_size

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float = 0.0, **call: Any) -> Tensor:
        """Compute attention in either layout.

        The host calls flash-attention with ``causal`` and tensors ``[B, N, H, D]``, torch's function with
        ``is_causal`` and ``[B, H, N, D]``. Which of them depends on what is installed here, not on the layer.
        """
        flash_layout = "causal" in call
        if flash_layout:
            query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        causal = call["causal"] if flash_layout else call.get("is_causal", False)
        out = attention(
            query, key, value, window_size=self.window_size, causal=causal, dropout_p=dropout_p, backend=self.backend
        )
        return out.transpose(1, 2) if flash_layout else out

    def __deepcopy__(self, memo: dict[int, Any]) -> BareAttention:
        return BareAttention(self.backend, self.window_size)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ([torch.nn.functional.scaled_dot_product_attention], 0)


def is_bare(attention: Any) -> bool:
    """Whether a layer's attention is a function, as releases before 0.4 save it."""
    return callable(attention) and not isinstance(attention, (torch.nn.Module, BareAttention))


def backend_of_function(function: Any) -> str:
    """Name the backend whose function a layer holds.

    It may stand for one that is not installed; what stands in its place keeps its module and name.
    """
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return "flash_attention" if "flash" in name else "scaled_dot_product_attention"
