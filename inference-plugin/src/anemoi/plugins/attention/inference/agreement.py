# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""One choice of backends for all processes of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .selection import Choice
from anemoi.plugins.attention.models import BackendUnavailable


def require_agreement(runner: Any, choices: Iterable[Choice]) -> None:
    """Check that all processes of a parallel run have chosen the same; a run of one process passes.

    Parameters
    ----------
    runner : Runner
        The runner of this process.
    choices : iterable of Choice
        What was chosen here, from the run configuration and the environment of this process.

    Raises
    ------
    BackendUnavailable
        On every process, if two have chosen differently: the parts of one attention would be computed apart.
    """
    group = getattr(getattr(runner, "compute_client", None), "process_group", None)
    if group is None:
        return
    mine = {choice.kind: f"{choice.backend} (from {choice.source})" for choice in choices}
    everyone: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(everyone, mine, group=group)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise BackendUnavailable(
                f"The processes of this run do not agree on the attention backends: rank 0 has "
                f"{everyone[0] or 'no choice'}, rank {rank} has {other or 'no choice'}. Allowed: one choice for all. "
                "Set it in the run configuration, or give every process the same environment."
            )
