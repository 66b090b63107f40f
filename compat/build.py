# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Make checkpoints with a release, and the answers that its own attention gives: ``build.py FOLDER``.

The packages of this repository are not used here, though they can be seen.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from anemoi.models.layers import attention as host
from anemoi.utils.checkpoints import save_metadata
from release_layers import CHANNELS
from release_layers import POINTS
from release_layers import WINDOW
from release_layers import ForecastModel
from release_layers import call
from release_layers import make_layers
from run_facts import METADATA
from run_facts import STEPS
from run_facts import VARIABLES
from torch import Tensor
from torch import nn


def main(folder: Path) -> None:
    """Write a file for each layer, ``model.ckpt``, a model with metadata, and ``answers.pt``, what they answer."""
    assert not any(name.startswith("anemoi.plugins") for name in sys.modules)
    folder.mkdir(parents=True, exist_ok=True)
    x = torch.randn(POINTS, CHANNELS)
    saved = {}
    for number, (name, layer) in enumerate(make_layers().items()):
        saved[name] = {
            "file": f"layer{number}.pt",
            "kind": "graph_transformer" if name == "graph" else "transformer",
            "state": {key: value.clone() for key, value in layer.state_dict().items()},
            "answer": answer(layer, x),
        }
        torch.save(layer, folder / saved[name]["file"])
    model = ForecastModel(len(VARIABLES), len(VARIABLES), STEPS).eval()
    path = folder / "model.ckpt"
    torch.save(model, path)
    save_metadata(path, METADATA)
    state = torch.randn(STEPS, POINTS, len(VARIABLES))
    honour_window(model)
    with torch.no_grad():
        forecast = model.predict_step(state[None])[0, 0]
    torch.save({"x": x, "layers": saved, "state": state, "forecast": forecast}, folder / "answers.pt")


def answer(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Return what a layer answers, or None where the release refuses an option, as those from 0.13 do."""
    try:
        return call(layer, x)
    except NotImplementedError:
        return None


def honour_window(model: nn.Module) -> None:
    """Give the layers of releases before 0.4 the window that their attention without flash-attention ignores."""
    if hasattr(host, "SDPAAttentionWrapper"):
        return
    points = torch.arange(POINTS)
    mask = (points[:, None] - points).abs() <= WINDOW
    for layer in model.modules():
        if isinstance(layer, host.MultiHeadSelfAttention):
            layer.attention = partial(nn.functional.scaled_dot_product_attention, attn_mask=mask)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
