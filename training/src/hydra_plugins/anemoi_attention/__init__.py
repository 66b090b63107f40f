# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Hydra finds this plugin by its place, in every process of a run, and may execute it more than once."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from anemoi.plugins.attention.training.activation import activate

PROVIDER = "anemoi-plugins-attention"

activate()


class AttentionSearchPathPlugin(SearchPathPlugin):
    """Add the configurations of anemoi-plugins-attention to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the working directory, and behind it the configurations of the training and graphs packages."""
        # anemoi-training adds the working directory too, by the same rule, but after us: without this, a user's own
        # copy of attention.yaml would be passed over without a word.
        for folder in (Path.cwd(), Path.cwd() / "config"):
            if folder.is_dir() and not (folder / "config").exists():
                search_path.append(provider=PROVIDER, path=str(folder))
        search_path.append(provider=PROVIDER, path="pkg://anemoi.plugins.attention.training/config")
        search_path.append(provider=PROVIDER, path="pkg://anemoi.plugins.attention.graphs/config")
