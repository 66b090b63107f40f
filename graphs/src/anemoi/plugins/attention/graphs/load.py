# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The shipped graph configurations without a training configuration around them."""

from importlib.resources import as_file
from importlib.resources import files
from pathlib import Path
from typing import Any

from anemoi.utils.config import DotDict
from omegaconf import OmegaConf

GROUP = "anemoi.plugins.attention.graphs.config"


def graph_names() -> list[str]:
    """Return the names of the shipped graphs, those of ``anemoi-training train graph=<name>``."""
    folder = files(GROUP).joinpath("graph")
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_graph_config(name: str, dataset: str | Path | dict[str, Any]) -> DotDict:
    """Load a shipped graph configuration and name its dataset.

    Parameters
    ----------
    name : str
        Name of the graph, for example ``"attention_blizzard"``.
    dataset : str, Path or dict
        What ``anemoi.datasets.open_dataset`` takes: the data nodes are its points.

    Returns
    -------
    DotDict
        Configuration for ``anemoi.graphs.create.GraphCreator(config=...)``.

    Raises
    ------
    ValueError
        If no shipped graph has this name.
    """
    if name not in graph_names():
        raise ValueError(f"{name!r} is no shipped graph. Allowed: {', '.join(graph_names())}. Choose one of these.")
    with as_file(files(GROUP).joinpath("graph", f"{name}.yaml")) as path:
        graph = OmegaConf.load(path)
    # The files take the dataset from the place where a training configuration has it.
    source = dataset if isinstance(dataset, dict) else str(dataset)
    data = {"training": {"datasets": {"data": {"dataset_config": source}}}}
    resolved: Any = OmegaConf.to_container(OmegaConf.create({"graph": graph, "dataloader": data}), resolve=True)
    return DotDict(resolved["graph"])
