# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Attributes of the host that are replaced, and put back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Replaced attributes with what they were, so that all can be undone."""

    def __init__(self) -> None:
        self._originals: dict[tuple[Any, str], Any] = {}

    def set(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute; a second time is a no-op."""
        if (owner, name) not in self._originals:
            self._originals[owner, name] = getattr(owner, name)
            setattr(owner, name, replacement)

    def original(self, owner: Any, name: str) -> Any:
        """Return what an attribute was before."""
        return self._originals.get((owner, name), getattr(owner, name))

    def undo(self) -> None:
        """Put all originals back."""
        while self._originals:
            (owner, name), original = self._originals.popitem()
            setattr(owner, name, original)


PATCHES = Patches()
"""What :func:`~anemoi.plugins.attention.models.enable` has replaced in this process."""
