# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A checkpoint as a file: the archive that torch writes, with what anemoi-training adds to it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

from anemoi.utils.checkpoints import load_metadata

from ..errors import InvalidCheckpoint

_PICKLE = "data.pkl"
_ALLOWED = "Allowed: an inference checkpoint as anemoi-training writes it, for example inference-last.ckpt."


class CheckpointArchive:
    """The records of a checkpoint, without its weights.

    Parameters
    ----------
    path : str or Path
        The checkpoint.

    Raises
    ------
    InvalidCheckpoint
        If it can't be read, or is no archive of torch.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_readable(self.path)
        with zipfile.ZipFile(self.path) as archive:
            self.records = archive.namelist()
        found = [name for name in self.records if name.split("/")[1:] == [_PICKLE]]
        if len(found) != 1:
            raise invalid(
                self.path,
                f"it is a zip archive of {len(self.records)} files, but torch.save has not written it (no {_PICKLE})",
            )
        self.folder = found[0].partition("/")[0]
        """The one folder at the top of the archive."""

    def read(self, name: str) -> bytes:
        """Return a record, by its name below the top folder.

        Raises
        ------
        InvalidCheckpoint
            If it is damaged.
        """
        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(f"{self.folder}/{name}")
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise invalid(self.path, f"it is damaged ({error})", "Copy it again from where it came from.") from error

    def pickled(self) -> bytes:
        """Return the pickle of the saved object."""
        return self.read(_PICKLE)

    def extra_records(self) -> list[str]:
        """Return the full names of the records that are not torch's: metadata and supporting arrays."""
        own = {_PICKLE, "version", "byteorder", ".format_version", ".storage_alignment"}
        return [
            name
            for name in self.records
            if (inner := name.partition("/")[2]) not in own and not inner.startswith(("data/", ".data/"))
        ]

    def metadata(self) -> dict[str, Any] | None:
        """Return what anemoi-training has written about the training; None if nothing is there."""
        try:
            return load_metadata(str(self.path))
        except (OSError, ValueError, zipfile.BadZipFile):
            return None


def is_archive(path: str | Path) -> bool:
    """Whether a path is a zip archive, as every checkpoint of torch is."""
    return zipfile.is_zipfile(path)


def require_checkpoint(path: str | Path) -> None:
    """Check that a path is an inference checkpoint with its metadata.

    Raises
    ------
    InvalidCheckpoint
        With what it is instead.
    """
    archive = CheckpointArchive(path)
    if archive.metadata() is None:
        raise invalid(
            archive.path,
            "it has no metadata of its training (anemoi-metadata/anemoi.json)",
            "Make one from the training checkpoint with 'anemoi-training checkpoint inference'.",
        )


def check_readable(path: Path) -> None:
    """Check that a path is a zip archive that can be opened.

    Raises
    ------
    InvalidCheckpoint
        With what it is instead.
    """
    try:
        if path.is_dir():
            raise invalid(path, "it is a directory", "Name the file in it.")
        with path.open("rb") as file:
            start = file.read(4)
    except FileNotFoundError:
        target = f"it is a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else "no such file"
        raise invalid(path, target, "Correct the path.") from None
    except PermissionError:
        raise invalid(
            path, "no permission to read it", f"Ask its owner, or run 'chmod u+r {path}' if you are."
        ) from None
    except OSError as error:
        raise invalid(path, error.strerror or str(error), "Correct the path.") from None
    if zipfile.is_zipfile(path):
        return
    if not start:
        raise invalid(path, "it is empty", "Copy it again from where it came from.")
    if start.startswith(b"PK"):
        raise invalid(
            path,
            f"it is truncated (it ends after {path.stat().st_size} bytes, without the table of a zip archive)",
            "Copy it again from where it came from.",
        )
    raise invalid(path, f"it is no zip archive (it starts with {start!r})")


def invalid(path: Path, problem: str, advice: str = "Give the path of such a file.") -> InvalidCheckpoint:
    """Return the error for a file that is not what is needed."""
    return InvalidCheckpoint(f"Checkpoint '{path}' cannot be used: {problem}. {_ALLOWED} {advice}")
