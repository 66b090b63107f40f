# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The JSON file in which the tuner keeps its choice: writing, reading, and refusing what is not valid."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from typing import NoReturn

from .candidates import candidates
from .configurations import ARCHITECTURES
from .configurations import DIRECTIONS
from .configurations import DTYPES
from .configurations import MAX_HEAD_DIM
from .configurations import Configuration
from .configurations import Key
from .configurations import head_dim_block

FORMAT = 1

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_SIZES = ("block_m", "block_n", "num_warps", "num_stages")
_SWITCHES = ("explicit", "resident")
_FIELDS = (*Key._fields, *_SIZES, *_SWITCHES)
_HEADER = ("format", "gpu", "torch", "triton", "configurations")


class InvalidConfigurationFile(ValueError):
    """A file of attention configurations cannot be used."""


def check_target(path: str | PathLike[str], *, overwrite: bool) -> None:
    """Raise FileExistsError if a file would be replaced without having been asked to."""
    if Path(path).exists() and not overwrite:
        raise FileExistsError(
            f"The attention configurations cannot be written: {path} exists. Allowed: a new file. Choose another name, "
            "or give --overwrite (overwrite=True in Python)."
        )


def write(
    path: str | PathLike[str],
    entries: Mapping[Key, Configuration],
    *,
    overwrite: bool = False,
    **provenance: str,
) -> None:
    """Write configurations to a JSON file.

    Parameters
    ----------
    path : path
        The file.
    entries : mapping of Key to Configuration
        What :func:`read` will return.
    overwrite : bool
        Whether an existing file may be replaced.
    provenance : str
        Where they were measured: ``gpu``, ``torch``, ``triton``.

    Raises
    ------
    FileExistsError
        If the file exists and ``overwrite`` is not set.
    """
    check_target(path, overwrite=overwrite)
    rows = []
    for key, config in entries.items():
        row: dict[str, Any] = {**key._asdict(), "dtype": str(key.dtype).removeprefix("torch.")}
        rows.append(row | {name: getattr(config, name) for name in (*_SIZES, *_SWITCHES)})
    header = {"format": FORMAT, **{name: provenance.get(name, "") for name in _HEADER[1:-1]}}
    # Renamed when it is complete, so that no process ever reads half of it.
    unfinished = Path(path).with_name(f"{Path(path).name}.part")
    unfinished.write_text(json.dumps({**header, "configurations": rows}, indent=1) + "\n")
    unfinished.replace(path)


def read(path: str | PathLike[str]) -> dict[Key, Configuration]:
    """Read what :func:`write` wrote.

    Raises
    ------
    InvalidConfigurationFile
        If the file is missing, is not JSON, has a key too many or too few, or names a configuration that this release
        does not have.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        _refuse(path, str(error), "a JSON file written by the tuner")
    _check_keys(path, "the file", content, _HEADER)
    if content["format"] != FORMAT:
        _refuse(path, f"format={content['format']!r}", str(FORMAT))
    if not isinstance(content["configurations"], list):
        _refuse(path, f"configurations={content['configurations']!r}", "a list")
    entries: dict[Key, Configuration] = {}
    for number, row in enumerate(content["configurations"], start=1):
        where = f"configuration {number}"
        _check_keys(path, where, row, _FIELDS)
        key = _key(path, where, row)
        if key in entries:
            _refuse(path, f"{where} is the second for {_describe(key)}", "one each")
        entries[key] = _configuration(path, where, row, key)
    return entries


def _check_keys(path: str | PathLike[str], where: str, content: object, expected: Iterable[str]) -> None:
    if not isinstance(content, dict):
        _refuse(path, f"{where} is {content!r}", "an object")
    if unknown := sorted(set(content) - set(expected)):
        _refuse(path, f"{where} has the unknown keys {', '.join(unknown)}", ", ".join(expected))
    if missing := [name for name in expected if name not in content]:
        _refuse(path, f"{where} lacks {', '.join(missing)}", ", ".join(expected))


def _key(path: str | PathLike[str], where: str, row: dict[str, Any]) -> Key:
    buckets = [size for size in range(1, MAX_HEAD_DIM + 1) if size == head_dim_block(size)]
    allowed = {
        "architecture": ARCHITECTURES,
        "direction": DIRECTIONS,
        "dtype": tuple(_DTYPES),
        "head_dim": tuple(buckets),
        "windowed": (False, True),
    }
    for name, values in allowed.items():
        # In Python, 1 == True and 64.0 == 64.
        if not any(row[name] == value and type(row[name]) is type(value) for value in values):
            _refuse(path, f"{where} has {name}={row[name]!r}", ", ".join(map(str, values)))
    return Key(**{name: row[name] for name in Key._fields} | {"dtype": _DTYPES[row["dtype"]]})


def _configuration(path: str | PathLike[str], where: str, row: dict[str, Any], key: Key) -> Configuration:
    wanted = tuple(row[name] for name in (*_SIZES, *_SWITCHES))
    known = {tuple(getattr(found, name) for name in (*_SIZES, *_SWITCHES)): found for found in candidates(key)}
    for values, found in known.items():
        if wanted == values and all(type(a) is type(b) for a, b in zip(wanted, values, strict=True)):
            return found
    _refuse(path, f"{where} is {_text(wanted)} for {_describe(key)}", "; ".join(map(_text, known)))


def _text(values: tuple) -> str:
    sizes = ", ".join(f"{name}={value!r}" for name, value in zip(_SIZES, values, strict=False))
    switches = [name for name, value in zip(_SWITCHES, values[len(_SIZES) :], strict=True) if value]
    return " ".join([sizes, *switches])


def _describe(key: Key) -> str:
    kind = "windowed" if key.windowed else "global"
    return f"{key.architecture} {key.direction} {str(key.dtype).removeprefix('torch.')} D={key.head_dim} {kind}"


def _refuse(path: str | PathLike[str], value: str, allowed: str) -> NoReturn:
    raise InvalidConfigurationFile(
        f"The attention configurations of {path} cannot be used: {value}. Allowed: {allowed}. Write the file anew with "
        "'anemoi-attention tune'."
    )
