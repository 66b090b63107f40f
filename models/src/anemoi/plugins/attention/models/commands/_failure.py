# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""How the commands end when the user has to mend something."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import BackendUnavailable
from ..errors import InvalidCheckpoint
from ..errors import InvalidOutput
from ..errors import UnknownBackend
from ..errors import UnsupportedProblem

_EXPECTED = (
    BackendUnavailable,
    InvalidCheckpoint,
    InvalidOutput,
    UnknownBackend,
    UnsupportedProblem,
    # A checkpoint may name any package, and a disk may be full.
    ImportError,
    OSError,
)


@contextmanager
def exit_with_message(command: str) -> Iterator[None]:
    """End the program with the message of an error, without a traceback, if it is one that the user can mend."""
    try:
        yield
    except _EXPECTED as error:
        notes = getattr(error, "__notes__", [])
        raise SystemExit(" ".join([f"anemoi-attention {command}: {error}", *notes])) from error
