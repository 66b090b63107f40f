# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The errors a user of the attention plugins can meet.

Every message has four parts: what failed, the value that was given, what is allowed, and what to do.
"""

from collections.abc import Sequence
from difflib import get_close_matches


class BackendUnavailable(RuntimeError):
    """An attention backend was chosen that cannot run on this machine."""


class UnsupportedProblem(ValueError, NotImplementedError):
    """An attention backend was chosen that cannot compute this problem.

    It is a NotImplementedError, too: that is what the attention wrappers of anemoi-models raise.
    """


class InvalidCheckpoint(ValueError):
    """A file was given that is no checkpoint, or not one of the kind that is needed."""


class InvalidOutput(ValueError):
    """A file cannot be written where it was asked for."""


class UnknownBackend(ValueError):
    """A name was given that is no attention backend.

    Parameters
    ----------
    what : str
        Where the name came from, for example ``"runner.attention.transformer"``.
    name : object
        The value that was given.
    allowed : sequence of str
        The names that are allowed, aliases included.
    """

    def __init__(self, what: str, name: object, allowed: Sequence[str]) -> None:
        self.name = name
        self.allowed = list(allowed)
        closest = get_close_matches(name.lower(), self.allowed, n=1, cutoff=0.4) if isinstance(name, str) else []
        hint = f"Did you mean '{closest[0]}'?" if closest else f"Set {what} to one of these names."
        super().__init__(f"{what} names no attention backend: {name!r}. Allowed: {', '.join(self.allowed)}. {hint}")
