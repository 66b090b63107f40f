# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A whole model saved with flash-attention, forecast where it is not installed, by the command of the host."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from anemoi.plugins.attention.models.environment import VARIABLES

SDPA = "scaled_dot_product_attention"
# What flash-attention 2 has of which the host saves a reference.
STAND_IN = {
    "flash_attn/__init__.py": "from flash_attn.flash_attn_interface import flash_attn_func\n__version__ = '2.7.4'\n",
    "flash_attn/flash_attn_interface.py": "def flash_attn_func(query, key, value, **options): ...\n",
}
# As anemoi-training saves it, without this package.
BUILD = """
import sys
import torch
from anemoi.models.layers.attention import MultiHeadSelfAttention
from anemoi.utils.checkpoints import load_metadata, save_metadata

source, target = sys.argv[1:]
model = torch.load(source, weights_only=False, map_location="cpu")
layers = [module for module in model.modules() if isinstance(module, MultiHeadSelfAttention)]
for layer in layers:
    layer.attention_implementation = "flash_attention"
    layer.set_attention_function()
torch.save(model, target)
metadata, arrays = load_metadata(source, supporting_arrays=True)
save_metadata(target, metadata, supporting_arrays=arrays)
assert not [name for name in sys.modules if name.startswith("anemoi.plugins.attention")]
print(len(layers), type(layers[0].attention).__name__, layers[0].attention.attention.__module__)
"""


@pytest.fixture(scope="module")
def flash_checkpoint(blizzard_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the blizzard checkpoint as it would be, had it been trained with flash-attention."""
    folder = tmp_path_factory.mktemp("flash")
    for name, text in STAND_IN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    target = folder / "flash.ckpt"
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(blizzard_checkpoint), str(target)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert built.stdout.splitlines()[-1] == "2 FlashAttentionWrapper flash_attn.flash_attn_interface"
    return target


def test_d4_d6_flash_checkpoint_is_forecast_without_flash(
    flash_checkpoint: Path,
    run_configuration: Callable[..., dict[str, Any]],
    read_forecast: Callable[[Path], dict[str, np.ndarray]],
    forecast: Callable[..., dict[str, np.ndarray]],
    cli: Any,
    tmp_path: Path,
) -> None:
    assert importlib.util.find_spec("flash_attn") is None
    output = tmp_path / "flash.nc"
    configuration = run_configuration(checkpoint=str(flash_checkpoint), output={"netcdf": str(output)})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(configuration))

    refused = cli(tmp_path, "anemoi-inference", "run", "run.yaml", check=False)
    assert refused.returncode != 0
    assert "'flash_attention' cannot run its 2 transformer layers here" in refused.stdout
    assert f"{VARIABLES['transformer']}=triton_attention" in refused.stdout
    assert not output.exists()

    expected = forecast(runner={"attention": {"transformer": SDPA}})
    done = cli(tmp_path, "anemoi-inference", "run", "run.yaml", **{VARIABLES["transformer"]: "triton_attention"})
    assert "in 2 layers, from ANEMOI_INFERENCE_TRANSFORMER_ATTENTION_BACKEND, the checkpoint says flash" in done.stdout
    got = read_forecast(output)
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.isfinite(values).all()
        assert np.abs(values - got[name]).max() <= 1e-5 * np.abs(values).max(), name
