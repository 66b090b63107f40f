# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Giving an inference checkpoint another attention backend, in a new file."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import torch

from ..attention_backends import canonical_name
from ..environment import GRAPH_TRANSFORMER
from ..environment import TRANSFORMER
from ..errors import InvalidOutput
from ..errors import UnsupportedProblem
from ..layer_spec import require_options
from .archive import CheckpointArchive
from .layers import SavedLayer
from .layers import kinds_of
from .layers import layers_of
from .placeholders import load_checkpoint
from .placeholders import require_complete


def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    transformer: str | None = None,
    graph_transformer: str | None = None,
    overwrite: bool = False,
) -> list[SavedLayer]:
    """Write a copy of an inference checkpoint whose attention layers have another backend.

    Weights, metadata and supporting arrays are those of the source, bit for bit. Neither the backend of the source nor
    the new one has to run on this machine. A stock backend gives a checkpoint that opens without this package.

    Parameters
    ----------
    source : str or Path
        The checkpoint. It is unpickled, which runs code: convert only what you trust.
    target : str or Path
        The file to write. It appears when it is complete.
    transformer, graph_transformer : str or None
        Backend for each kind of layer; None keeps what is there.
    overwrite : bool
        Whether the target may exist; it is never the source, by whatever path.

    Returns
    -------
    list of SavedLayer
        The layers of the new file.

    Raises
    ------
    UnknownBackend
        If a name is no backend of its kind.
    InvalidCheckpoint
        If the source is not an inference checkpoint.
    InvalidOutput
        If the target cannot be written.
    UnsupportedProblem
        If there is no layer of a kind, or a backend does not offer an option of one.
    BackendUnavailable
        If the new backend's package is not installed: the checkpoint has to name its code.
    """
    asked = {TRANSFORMER: transformer, GRAPH_TRANSFORMER: graph_transformer}
    names = {kind: canonical_name(name, kind, f"{kind} backend") for kind, name in asked.items() if name is not None}
    archive = CheckpointArchive(source)
    target = Path(target)
    _require_writable(archive.path, target, overwrite=overwrite)
    _require_layers(archive, names)
    # Only here: it needs anemoi-models, and takes seconds.
    from ..integration import attention_layers
    from ..integration.saved_form import assign_saved_form

    model = load_checkpoint(archive.path, map_location="cpu")
    for path, kind, layer in attention_layers(model):
        if kind in names:
            assign_saved_form(path, kind, layer, names[kind])
    require_complete(model)
    _save(model, archive, target)
    return layers_of(CheckpointArchive(target))


def _require_writable(source: Path, target: Path, *, overwrite: bool) -> None:
    exists = target.exists() or target.is_symlink()
    folder = target.parent
    if exists and target.exists() and os.path.samefile(source, target):
        raise _refused(target, "it is the checkpoint to convert, which is never changed", "Give another path.")
    if target.is_dir():
        raise _refused(target, "it is a directory", f"Give the name of a file in it, like {target / source.name}.")
    if not folder.is_dir():
        raise _refused(target, f"there is no directory '{folder}'", "Make it first, or correct the path.")
    if exists and not overwrite:
        raise _refused(target, "the file exists", "Give another path, or --overwrite (overwrite=True) to replace it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(target, f"no permission to write in '{folder}'", "Give a path in a directory of yours.")


def _refused(target: Path, problem: str, advice: str) -> InvalidOutput:
    return InvalidOutput(
        f"The converted checkpoint cannot be written to '{target}': {problem}. Allowed: a new file in a directory that "
        f"exists. {advice}"
    )


def _require_layers(archive: CheckpointArchive, names: dict[str, str]) -> None:
    """Check, before the checkpoint is loaded, that there is something to convert and that its options are offered."""
    layers = layers_of(archive)
    kinds = kinds_of(layers)
    for kind, name in names.items():
        if kind not in kinds:
            raise UnsupportedProblem(
                f"'{archive.path}' has no {kind.replace('_', '-')} attention layer that could have backend '{name}'. "
                f"Kinds of layer in it: {', '.join(kinds) or 'none'}. Leave the option out."
            )
    require_options(
        [(layer.spec, names[layer.spec.kind]) for layer in layers if layer.spec.kind in names],
    )


def _save(model: torch.nn.Module, archive: CheckpointArchive, target: Path) -> None:
    """Write to a temporary folder beside the target, and move the file when it is complete."""
    with tempfile.TemporaryDirectory(prefix=".anemoi-attention-", dir=target.parent) as folder:
        # torch calls the top folder of the archive like the file, and the metadata name their arrays by it.
        written = Path(folder) / f"{archive.folder}.ckpt"
        torch.save(model, written)
        with zipfile.ZipFile(archive.path) as old, zipfile.ZipFile(written, "a") as new:
            for record in archive.extra_records():
                new.writestr(old.getinfo(record), old.read(record))
        written.chmod(archive.path.stat().st_mode & 0o777)
        os.replace(written, target)
