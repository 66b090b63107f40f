# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Options of the runner ``attention``, as they stand in a run configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from anemoi.plugins.attention.models.environment import GRAPH_TRANSFORMER
from anemoi.plugins.attention.models.environment import TRANSFORMER

if TYPE_CHECKING:
    # Older releases have it in another place.
    from anemoi.inference.config.run import RunConfiguration

BASE_RUNNER = "base_runner"
ALLOWED = (TRANSFORMER, GRAPH_TRANSFORMER, BASE_RUNNER)


class InvalidRunnerOptions(ValueError):
    """The options of the runner ``attention`` are not what it takes."""


@dataclass(frozen=True)
class AttentionOptions:
    """The backends that the run configuration asks for.

    Parameters
    ----------
    prefix : str
        Key of the run configuration that holds them, for example ``"runner.attention"``.
    backends : mapping of str to str
        Name as given, by kind of layer; kinds without a wish are absent.
    """

    prefix: str = "runner.attention"
    backends: Mapping[str, str] = field(default_factory=dict)

    def source(self, kind: str) -> str:
        """Return the key in the run configuration that sets the backend of a kind of layer."""
        return f"{self.prefix}.{kind}"


def parse_options(
    config: RunConfiguration, positional: tuple[Any, ...], options: Mapping[str, Any]
) -> AttentionOptions:
    """Check the options of the runner.

    Parameters
    ----------
    config : RunConfiguration
        The run configuration; it tells under which key the options stand.
    positional : tuple
        What the registry passes without a key: ``runner: {attention: VALUE}``.
    options : mapping
        The options with their keys, ``base_runner`` excepted.

    Raises
    ------
    InvalidRunnerOptions
        If a value has no key, a key is not known, or a value is no string. None means not set.
    """
    prefix = _prefix(config)
    if positional == (None,):
        # `runner: {attention: }`, with nothing behind it.
        positional = ()
    if positional:
        raise InvalidRunnerOptions(
            f"{prefix} takes options by name, got {_shown(positional)}. Allowed: {', '.join(ALLOWED)}. "
            f"Write 'runner: {{attention: {{{TRANSFORMER}: {positional[0]}}}}}'."
        )
    for key, value in options.items():
        if key not in (TRANSFORMER, GRAPH_TRANSFORMER):
            raise InvalidRunnerOptions(
                f"{prefix} has no option {key!r} (value {value!r}). Allowed: {', '.join(ALLOWED)}. "
                "Correct or remove it."
            )
        if value is not None and not isinstance(value, str):
            raise InvalidRunnerOptions(
                f"{prefix}.{key} must be the name of a backend, got {value!r} ({type(value).__name__}). "
                "Allowed: a string, or null for no choice. Run 'anemoi-attention explain' for the names."
            )
    return AttentionOptions(prefix, {kind: name for kind, name in options.items() if name is not None})


def _prefix(config: RunConfiguration) -> str:
    runner = config.runner
    # With `parallel`, the options stand beside its own, under its key.
    return f"runner.{next(iter(runner))}" if isinstance(runner, dict) and len(runner) == 1 else "runner.attention"


def _shown(positional: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, positional))
