# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The variables of the small model, and the metadata that anemoi-training would have written about it."""

from __future__ import annotations

from typing import Any

from release_layers import POINTS

STEPS = 2
VARIABLES = ("2t", "10u", "10v", "msl")

_ALL = list(range(len(VARIABLES)))
_SAME = {
    "input": {"full": _ALL, "forcing": [], "diagnostic": [], "prognostic": _ALL},
    "output": {"full": _ALL, "forcing": [], "diagnostic": [], "prognostic": _ALL},
}

METADATA: dict[str, Any] = {
    "version": "1.0",
    "run_id": "compat",
    "config": {
        "training": {"multistep_input": STEPS, "precision": "32"},
        "data": {"timestep": "6h", "frequency": "6h", "forcing": [], "diagnostic": []},
        "dataloader": {"training": {"dataset": "none"}},
    },
    "data_indices": {"data": _SAME, "model": _SAME},
    "dataset": {
        "variables": list(VARIABLES),
        "shape": [100, len(VARIABLES), 1, POINTS],
        "variables_metadata": {name: {"mars": {"param": name, "levtype": "sfc"}} for name in VARIABLES},
        "data_request": {"grid": "none", "area": None},
    },
    "provenance_training": {"module_versions": {}, "git_versions": {}},
}
