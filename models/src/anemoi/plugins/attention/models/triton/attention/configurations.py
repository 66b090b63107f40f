# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Which configuration a kernel runs with: the one loaded from a file if there is, else that of the static table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from functools import lru_cache
from os import PathLike
from typing import NamedTuple

import torch

from .tables import ARCHITECTURES
from .tables import DIRECTIONS
from .tables import DTYPES
from .tables import EXPLICIT
from .tables import EXPLICIT_ARCHITECTURE
from .tables import EXPLICIT_HEAD_DIMS
from .tables import MAX_HEAD_DIM
from .tables import PORTABLE
from .tables import WITH_DESCRIPTORS
from .tables import Configuration
from .tables import Entry

__all__ = [
    "ARCHITECTURES",
    "DIRECTIONS",
    "DTYPES",
    "MAX_HEAD_DIM",
    "Configuration",
    "Key",
    "architecture_of",
    "configuration",
    "device_architecture",
    "explicit_configuration",
    "explicit_of",
    "head_dim_block",
    "load",
    "portable",
    "shipped",
    "shipped_configuration",
    "shipped_portable",
    "unload",
    "using",
]

LOGGER = logging.getLogger(__name__)


class Key(NamedTuple):
    """What a stored configuration is for.

    Parameters
    ----------
    architecture : str
        One of ``ARCHITECTURES``.
    direction : str
        One of ``DIRECTIONS``.
    dtype : torch.dtype
        One of ``DTYPES``.
    head_dim : int
        A power of two, at least 16: it stands for the head dimensions above the next smaller one.
    windowed : bool
        Whether either side of the window has a limit.
    """

    architecture: str
    direction: str
    dtype: torch.dtype
    head_dim: int
    windowed: bool


# Global rather than per thread: autograd runs the backward in threads of its own.
_loaded: dict[Key, Configuration] = {}


def load(path: str | PathLike[str]) -> None:
    """Use the configurations of a file that the tuner wrote, in place of those of the table, in this process.

    Every process of a job has to load the same file, before its first attention. What was loaded before is dropped.

    Raises
    ------
    InvalidConfigurationFile
        If the file is not one that this release understands; nothing is changed then.
    """
    from .configuration_file import read

    entries = read(path)
    _loaded.clear()
    _loaded.update(entries)
    LOGGER.info("%d attention configurations loaded from %s.", len(entries), path)


def unload() -> None:
    """Go back to the table."""
    _loaded.clear()


@contextmanager
def using(entries: Mapping[Key, Configuration]) -> Iterator[None]:
    """Use other configurations for the keys given, within a ``with`` block."""
    before = dict(_loaded)
    _loaded.update(entries)
    try:
        yield
    finally:
        _loaded.clear()
        _loaded.update(before)


def head_dim_block(head_dim: int) -> int:
    """Width of a tile that holds a head: the next power of two, at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def configuration(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, *, windowed: bool
) -> Configuration:
    """Look up the configuration of a portable kernel.

    Parameters
    ----------
    architecture : str
        One of ``ARCHITECTURES``.
    direction : str
        One of ``DIRECTIONS``.
    dtype : torch.dtype
        Of the tensors, one of ``DTYPES``.
    head_dim : int
        At most ``MAX_HEAD_DIM``.
    windowed : bool
        Whether either side of the window has a limit.
    """
    loaded = _loaded.get(Key(architecture, direction, dtype, head_dim_block(head_dim), windowed))
    if loaded is not None and not loaded.explicit:
        return loaded
    return shipped_portable(architecture, direction, dtype, head_dim, windowed)


def explicit_configuration(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, *, windowed: bool
) -> Configuration | None:
    """Look up the configuration of a kernel with explicit asynchrony; None where a portable one serves. See above."""
    if architecture != EXPLICIT_ARCHITECTURE or head_dim not in EXPLICIT_HEAD_DIMS:
        return None
    loaded = _loaded.get(Key(architecture, direction, dtype, head_dim, windowed))
    if loaded is not None:
        return loaded if loaded.explicit else None
    return _shipped_explicit(direction, dtype, head_dim, windowed)


def shipped_portable(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, windowed: bool
) -> Configuration:
    """Look up the configuration of a portable kernel in the table. See ``configuration``."""
    rows = PORTABLE[architecture][direction]
    bucket = next(d for size, d in rows if size == dtype.itemsize and d >= head_dim_block(head_dim))
    return portable(architecture, direction, dtype, rows[dtype.itemsize, bucket][windowed])


def shipped_configuration(
    architecture: str, direction: str, dtype: torch.dtype, head_dim: int, windowed: bool
) -> Configuration:
    """Look up in the tables what runs where nothing was loaded. See ``configuration``."""
    explicit = None
    if architecture == EXPLICIT_ARCHITECTURE:
        explicit = _shipped_explicit(direction, dtype, head_dim, windowed)
    return explicit or shipped_portable(architecture, direction, dtype, head_dim, windowed)


def _shipped_explicit(direction: str, dtype: torch.dtype, head_dim: int, windowed: bool) -> Configuration | None:
    entry = EXPLICIT[direction].get((dtype.itemsize, head_dim), (None, None))[windowed]
    return None if entry is None else explicit_of(entry)


def portable(architecture: str, direction: str, dtype: torch.dtype, entry: Entry) -> Configuration:
    """Complete the entry of a table for a portable kernel."""
    block_m, block_n, num_warps, num_stages = entry
    # Below 64 rows the matrix units read registers; what a descriptor brings then takes a detour and spills.
    tall = (block_n if direction == "backward_key_value" else block_m) >= 64
    descriptors = tall and dtype.itemsize == 2 and architecture in WITH_DESCRIPTORS
    return Configuration(block_m, block_n, num_warps, num_stages, descriptors)


def explicit_of(entry: Entry, *, resident: bool = False) -> Configuration:
    """Complete the entry of a table for a kernel with explicit asynchrony."""
    return Configuration(*entry, descriptors=True, explicit=True, resident=resident)


def shipped() -> Iterator[tuple[str, str, torch.dtype, int, bool]]:
    """Every combination the table serves: architecture, direction, dtype, head_dim (a power of two), windowed."""
    for architecture in ARCHITECTURES:
        for direction in DIRECTIONS:
            for dtype in DTYPES:
                for head_dim in (16, 32, 64, 128, 256):
                    for windowed in (False, True):
                        yield architecture, direction, dtype, head_dim, windowed


@lru_cache
def device_architecture(index: int) -> str:
    """Name the architecture of a CUDA or ROCm device, or the closest older one in the table."""
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]
        return name if name in PORTABLE else "gfx90a"
    capability = (properties.major, properties.minor)
    if capability[0] == 9:
        return "sm_90"
    if capability[0] == 10:
        return "sm_100"
    # 8.0 and 8.7 have the shared memory of a data-centre card; 8.6, 8.9 and 12.x have 99 kB.
    return "sm_80" if capability in ((8, 0), (8, 7)) else "sm_89"


def architecture_of(device: torch.device) -> str:
    """Name the architecture whose configurations a device uses; the interpreter on a CPU takes those of sm_90."""
    if device.type != "cuda":
        return "sm_90"
    return device_architecture(torch.cuda.current_device() if device.index is None else device.index)
