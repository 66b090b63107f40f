# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The Hydra plugin: what it costs, and that it is in effect."""

import subprocess
import sys

SCRIPT = """
import sys
from hydra.core.plugins import Plugins
Plugins.instance()._initialize()  # Hydra may execute the plugin again
import hydra_plugins.anemoi_attention
heavy = {"torch", "anemoi.models", "anemoi.training", "anemoi.plugins.attention.models"} & set(sys.modules)
assert not heavy, heavy
"""

EFFECT = """
from hydra.core.plugins import Plugins
Plugins.instance()
from anemoi.training.schemas.base_schema import BaseSchema
from anemoi.models.layers.attention import MultiHeadSelfAttention
from anemoi.plugins.attention.models import UnknownBackend
MultiHeadSelfAttention(
    4, 32, {layer_kernels}, attention_implementation="triton_attention", window_size=8, qkv_bias=False, dropout_p=0.0
)
try:
    BaseSchema(model={{"processor": {{"attention_implementation": "trtion"}}}})
except UnknownBackend:
    print("refused")
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_hydra_applications_pay_nothing():
    run(SCRIPT)


def test_backends_and_name_check_take_effect_when_the_hosts_are_imported():
    kernels = "__import__('anemoi.models.layers.utils', fromlist=['x']).load_layer_kernels()"
    assert "refused" in run(EFFECT.format(layer_kernels=kernels))
