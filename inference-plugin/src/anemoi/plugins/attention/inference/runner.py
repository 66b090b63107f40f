# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``runner: {attention: {...}}``: the attention backend, chosen in the run configuration."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from typing import Any

from anemoi.inference.runner import Runner

from .base_runner import find_base_runner
from .composition import compose
from .host import install
from .options import parse_options
from .override import AttentionOverride

if TYPE_CHECKING:
    # Older releases have it in another place.
    from anemoi.inference.config.run import RunConfiguration

# The host imports this module whenever it looks a runner up: from then on the environment variables count, too.
install()


class AttentionRunner(AttentionOverride, Runner):
    """A runner on top of another one, with the attention backends that the run configuration names.

    Parameters
    ----------
    config : RunConfiguration
        The run configuration.
    transformer : str or None
        Backend of the transformer layers, self- and cross-attention.
    graph_transformer : str or None
        Backend of the graph-transformer layers.
    base_runner : str or dict
        The runner to build on, as one would write it for ``runner:``. ``"auto"`` takes the one that the checkpoint's
        task asks for.

    Raises
    ------
    InvalidRunnerOptions
        If the options are not those above.
    UnknownBackend
        If a name is no backend.
    BackendUnavailable
        If a backend cannot run on the device of this run.
    """

    _base_arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, config: RunConfiguration, *args: Any, base_runner: Any = "auto", **kwargs: Any) -> AttentionRunner:
        """Make the instance of a class that inherits from this one (or `parallel` of it) and from the base runner."""
        base = find_base_runner(base_runner, config)
        runner: AttentionRunner = object.__new__(_on_top_of(cls, base.runner_class))
        runner._base_arguments = (base.args, base.kwargs)
        return runner

    def __init__(self, config: RunConfiguration, *args: Any, base_runner: Any = "auto", **options: Any) -> None:
        self.attention_options = parse_options(config, args, options)
        base_args, base_kwargs = self._base_arguments
        super().__init__(config, *base_args, **base_kwargs)


@cache
def _on_top_of(cls: type[AttentionRunner], base: type[Runner]) -> type[AttentionRunner]:
    return cls if issubclass(cls, base) else compose(f"{cls.__name__}[{base.__name__}]", (cls, base))
