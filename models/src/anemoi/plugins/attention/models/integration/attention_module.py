# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The module that a host's layer calls for its attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch import nn

from ..functional import attention
from ..rotary import rotate
from .requirement import reduce_with_requirement


class AttentionModule(nn.Module):
    """A backend of this package behind the call of the host's attention wrappers.

    It holds no weights and no mask. It is pickled as the host's own ``SDPAAttentionWrapper``, so that a checkpoint
    opens where this package is not installed; where it is, the layer turns it back by its
    ``attention_implementation``. With rotary embeddings it is pickled as itself, as the stock wrapper would leave
    them out without a word; a load without this package says what to install.

    Parameters
    ----------
    backend : str
        Canonical name of a transformer backend.
    rotary : bool
        Whether queries and keys get rotary position embeddings.
    """

    def __init__(self, backend: str, rotary: bool = False) -> None:
        super().__init__()
        self.backend = backend
        self.rotary = rotary

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch_size: int,
        causal: bool = False,
        window_size: int | tuple[int, int] | None = None,
        dropout_p: float = 0.0,
        softcap: float | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        """Compute ``[batch, heads, grid, vars]`` from tensors of that shape; ``batch_size`` is their first size."""
        if self.rotary:
            query, key = rotate(query), rotate(key)
        return attention(
            query,
            key,
            value,
            window_size=window_size,
            causal=causal,
            softcap=softcap or 0.0,
            # The host keeps its slopes in a plain attribute, which no `.to(device)` reaches.
            alibi_slopes=None if alibi_slopes is None else alibi_slopes.to(query.device),
            dropout_p=dropout_p,
            backend=self.backend,
        )

    def extra_repr(self) -> str:
        """Show the backend where the model is printed."""
        return f"backend={self.backend}" + (", rotary" if self.rotary else "")

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionModule:
        copied = AttentionModule(self.backend, self.rotary).train(self.training)
        memo[id(self)] = copied
        return copied

    def __copy__(self) -> AttentionModule:
        return self.__deepcopy__({})

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.rotary:
            why = "its attention has rotary embeddings, which anemoi-models leaves out"
            return reduce_with_requirement(why, AttentionModule, self.backend, self.rotary)
        from anemoi.models.layers.attention import SDPAAttentionWrapper

        return SDPAAttentionWrapper, ()
