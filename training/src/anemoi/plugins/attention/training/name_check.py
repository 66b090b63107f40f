# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Refuse unknown attention backends when anemoi-training validates a configuration.

The released schemas take any string for `attention_implementation` and `graph_attention_backend`; a misspelt name
passes `anemoi-training config validate` and fails when the model is built, on a cluster after the queue.
"""

import functools
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TypeGuard

from omegaconf import DictConfig

KINDS = {"attention_implementation": "transformer", "graph_attention_backend": "graph_transformer"}
"""Configuration key of a backend, and the kind of layer it belongs to."""

_ORIGINAL = "_anemoi_plugins_attention_original_init"


def install(schema: type) -> None:
    """Make a schema check the names of attention backends before anything else; a second call does nothing.

    Parameters
    ----------
    schema : type
        ``anemoi.training.schemas.base_schema.BaseSchema``, which both ``train`` and ``config validate`` build.
    """
    if _ORIGINAL in vars(schema):
        return
    original = schema.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def checked_init(self: Any, /, **data: Any) -> None:
        # Outside of pydantic: the host turns a ValidationError of `train` into exit status 0.
        check_model(data.get("model"))
        original(self, **data)

    setattr(schema, _ORIGINAL, original)
    schema.__init__ = checked_init  # type: ignore[misc]


def uninstall(schema: type) -> None:
    """Undo :func:`install`."""
    if _ORIGINAL in vars(schema):
        schema.__init__ = getattr(schema, _ORIGINAL)  # type: ignore[misc]
        delattr(schema, _ORIGINAL)


def check_model(model: Any) -> None:
    """Check every backend that a model configuration names.

    Parameters
    ----------
    model : mapping or object
        The ``model`` section of a training configuration. Anything but a mapping is left to the schema.

    Raises
    ------
    UnknownBackend
        If a name is none of an attention backend; the message has its key, the allowed names and the closest.
    """
    from anemoi.plugins.attention.models.attention_backends import canonical_name

    for path, layer in _layers(model):
        for key, kind in KINDS.items():
            # A value that is still missing (???) is not in the section.
            if key in layer:
                canonical_name(layer[key], kind, f"{path}.{key}")


def _layers(model: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the key and the section of each layer that can name a backend."""
    if not _is_mapping(model):
        return
    processor = model.get("processor")
    if _is_mapping(processor):
        yield "model.processor", processor
    for group in ("encoders", "decoders"):
        entries = model.get(group)
        for name, entry in entries.items() if _is_mapping(entries) else ():
            mapper = entry.get("mapper") if _is_mapping(entry) else None
            if _is_mapping(mapper):
                yield f"model.{group}.{name}.mapper", mapper


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping | DictConfig)
