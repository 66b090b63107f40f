# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the tuner tries for a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from .configurations import Configuration
from .configurations import Key
from .configurations import explicit_of
from .configurations import portable
from .configurations import shipped_configuration
from .configurations import shipped_portable
from .tables import EXPLICIT_ARCHITECTURE
from .tables import EXPLICIT_HEAD_DIMS
from .tables import Entry

MAX_CANDIDATES = 8

# Kernels with explicit asynchrony, most promising first; a trailing True keeps the own rows in registers.
_EXPLICIT: dict[str, tuple[tuple[Entry, bool], ...]] = {
    "forward": (((64, 64, 4, 4), False), ((64, 64, 4, 2), False), ((128, 64, 8, 2), False), ((64, 64, 4, 2), True)),
    "backward_query": (((64, 64, 4, 2), False), ((64, 64, 4, 2), True), ((64, 64, 4, 4), False)),
    "backward_key_value": (
        ((64, 64, 4, 2), False),
        ((32, 64, 4, 4), False),
        ((64, 64, 4, 2), True),
        ((32, 64, 4, 4), True),
    ),
}


def candidates(key: Key) -> list[Configuration]:
    """List at most ``MAX_CANDIDATES`` configurations for a kernel, the shipped one first.

    A candidate need not compile everywhere: the tuner skips what does not, and what gives wrong results.
    """
    found = [shipped_configuration(*key)]
    explicit = key.architecture == EXPLICIT_ARCHITECTURE and key.dtype.itemsize == 2
    if explicit and key.head_dim in EXPLICIT_HEAD_DIMS:
        found += [explicit_of(entry, resident=resident) for entry, resident in _EXPLICIT[key.direction]]
    base = shipped_portable(*key)
    entry = (base.block_m, base.block_n, base.num_warps, base.num_stages)
    found.append(base)
    found += [portable(key.architecture, key.direction, key.dtype, changed) for changed in _neighbours(entry)]
    return list(dict.fromkeys(found))[:MAX_CANDIDATES]


def _neighbours(entry: Entry) -> Iterator[Entry]:
    """Change one size at a time, within what the kernels can do."""
    block_m, block_n, num_warps, num_stages = entry
    changed = [
        (block_m, block_n, num_warps, num_stages + 1),
        (block_m, block_n, num_warps, num_stages - 1),
        (block_m, block_n // 2, num_warps, num_stages),
        (block_m // 2, block_n, num_warps, num_stages),
        (block_m, block_n * 2, num_warps, num_stages),
        (block_m * 2, block_n, num_warps, num_stages),
        (block_m, block_n, 8 if num_warps != 8 else 4, num_stages),
    ]
    for candidate in changed:
        if min(candidate[:2]) >= 16 and max(candidate[:2]) <= 128 and 1 <= candidate[3] <= 4:
            yield candidate
