# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Use what ``build.py`` has made with the packages of this repository: ``check.py FOLDER WHAT``.

Prints, as JSON, how far the answers are from what they are to be. With WHAT

- ``layers``, the layers on the release of anemoi-models that they were built with;
- ``transformer_layers``, those of the transformer on any release;
- ``by_variable``, a forecast whose backend the environment variable chooses;
- ``by_configuration``, a forecast whose backend the run configuration chooses.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from release_layers import HEADS
from release_layers import call
from torch import Tensor

from anemoi.plugins.attention.models import enable
from anemoi.plugins.attention.models import override_backends
from anemoi.plugins.attention.models.checkpoint import load_checkpoint
from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention

RESULT = "RESULT "
BACKENDS = {"transformer": "triton_attention", "graph_transformer": "triton_attention"}


def check_layers(folder: Path, kinds: Collection[str] = tuple(BACKENDS)) -> dict[str, Any]:
    """Return, for each layer, the largest difference from the released answer and from the definition."""
    enable()
    saved = torch.load(folder / "answers.pt", weights_only=True)
    found: dict[str, Any] = {}
    for name, answers in saved["layers"].items():
        kind = answers["kind"]
        if kind not in kinds:
            continue
        layer = load_checkpoint(folder / answers["file"], map_location="cpu", weights_only=False)
        weights = {key: value.clone() for key, value in layer.state_dict().items()}
        reports = override_backends(layer, **{kind: BACKENDS[kind]})
        assert [report.backend for report in reports] == [BACKENDS[kind]], reports
        assert weights.keys() == layer.state_dict().keys() == answers["state"].keys()
        assert all(torch.equal(weights[key], answers["state"][key]) for key in weights)
        out = call(layer, saved["x"])
        row = {"released": None if answers["answer"] is None else difference(out, answers["answer"])}
        if name.startswith("self"):
            with torch.no_grad():
                row["definition"] = difference(out, by_definition(layer, saved["x"]))
        found[name] = row
    return found


def difference(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference."""
    return (got.double() - expected.double()).abs().max().item()


def by_definition(layer: Any, x: Tensor) -> Tensor:
    """Compute a self-attention layer from its weights and options, in float64."""
    layer = layer.double()
    x = x.double()
    joint = layer._modules.get("lin_qkv")
    rows = joint(x).chunk(3, -1) if joint else (layer.lin_q(x), layer.lin_k(x), layer.lin_v(x))
    query, key, value = (r.unflatten(-1, (HEADS, -1)).transpose(0, 1)[None] for r in rows)
    if getattr(layer, "qk_norm", False):
        query, key = layer.q_norm(query), layer.k_norm(key)
    problem = make_problem(
        query,
        key,
        value,
        window_size=layer.window_size,
        softcap=getattr(layer, "softcap", None) or 0.0,
        alibi_slopes=getattr(layer, "alibi_slopes", None),
    )
    return layer.projection(reference_attention(problem)[0].transpose(0, 1).flatten(1))


def check_model(folder: Path, runner: Any = "default") -> dict[str, Any]:
    """Return how far a forecast by anemoi-inference is from the model's own."""
    from forecast import forecast

    saved = torch.load(folder / "answers.pt", weights_only=True)
    with CapturedLog() as log:
        got = forecast(folder / "model.ckpt", saved["state"], runner)
    return {"forecast": difference(got, saved["forecast"]), "log": [m for m in log.lines if "ttention" in m]}


class CapturedLog(logging.Handler):
    """What is logged meanwhile."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())

    def __enter__(self) -> CapturedLog:
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(logging.INFO)
        return self

    def __exit__(self, *_: Any) -> None:
        logging.getLogger().removeHandler(self)


COMMANDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "layers": check_layers,
    "transformer_layers": lambda folder: check_layers(folder, ["transformer"]),
    "by_variable": check_model,
    "by_configuration": lambda folder: check_model(folder, {"attention": BACKENDS}),
}


if __name__ == "__main__":
    print(RESULT + json.dumps(COMMANDS[sys.argv[2]](Path(sys.argv[1]))))
