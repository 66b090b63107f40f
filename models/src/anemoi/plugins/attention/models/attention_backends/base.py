# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The contract of a backend."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ..problem import AttentionProblem


class Backend(ABC):
    """Something that computes attention and can say when it cannot.

    The class attributes state what it can do; :meth:`not_supported_reasons` of the subclasses derives from them, so
    that selection, error messages and tests have one source.
    """

    name: ClassVar[str]
    """The name in configurations."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names accepted for it."""

    @abstractmethod
    def available(self, device_type: str | None = None) -> tuple[bool, str]:
        """Whether this backend can run on this machine.

        Parameters
        ----------
        device_type : str or None
            ``"cpu"`` or ``"cuda"``: the device it is to run on. None asks about the machine as a whole.

        Returns
        -------
        tuple of bool and str
            The answer, and the reason (with the fix if the answer is no).
        """


class TransformerBackend(Backend):
    """Dense or windowed multi-head attention on ``[B, H, N, D]``."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.bfloat16, torch.float32)
    max_head_dim: ClassVar[int | None] = None
    supports_softcap: ClassVar[bool] = False
    supports_alibi: ClassVar[bool] = False
    supports_dropout: ClassVar[bool] = False

    def not_supported_reasons(self, problem: AttentionProblem) -> list[str]:
        """List why this backend cannot compute the problem; empty if it can."""
        reasons = []
        available, reason = self.available(problem.query.device.type)
        if not available:
            reasons.append(reason)
        if problem.query.dtype not in self.dtypes:
            reasons.append(f"dtype={problem.query.dtype} (takes {', '.join(map(str, self.dtypes))})")
        head_dim = problem.query.shape[-1]
        if self.max_head_dim is not None and head_dim > self.max_head_dim:
            reasons.append(f"head_dim={head_dim} (at most {self.max_head_dim})")
        if problem.softcap > 0.0 and not self.supports_softcap:
            reasons.append(f"softcap={problem.softcap} (not offered)")
        if problem.alibi_slopes is not None and not self.supports_alibi:
            reasons.append("alibi_slopes (not offered)")
        if problem.dropout_p > 0.0 and not self.supports_dropout:
            reasons.append(f"dropout_p={problem.dropout_p} (not offered)")
        return reasons

    @abstractmethod
    def run(self, problem: AttentionProblem) -> Tensor:
        """Compute ``[B, H, N_q, D]``, differentiably. The problem is one without :meth:`not_supported_reasons`."""
