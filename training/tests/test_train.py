# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A real training, in an empty folder, through the command line."""

import json
import zipfile
from pathlib import Path

import torch


def test_trains_and_links_its_checkpoint(blizzard_training: tuple[Path, str]):
    directory, log = blizzard_training
    link = directory / "output" / "inference-last.ckpt"
    assert link.is_symlink()
    assert not Path(link.readlink()).is_absolute()
    assert "Epoch 0" in log, "no progress was shown"


def test_the_checkpoint_has_the_backend_and_finite_weights(blizzard_checkpoint: Path):
    with zipfile.ZipFile(blizzard_checkpoint) as archive:
        name = next(item for item in archive.namelist() if item.endswith("anemoi-metadata/anemoi.json"))
        config = json.loads(archive.read(name))["config"]
    assert config["model"]["processor"]["attention_implementation"] == "triton_attention"
    assert config["config_validation"] is True
    model = torch.load(blizzard_checkpoint, weights_only=False, map_location="cpu")
    assert all(torch.isfinite(value).all() for value in model.state_dict().values() if value.is_floating_point())
