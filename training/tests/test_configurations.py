# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The shipped training configurations under the released schema."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from hydra import compose
from hydra import initialize
from omegaconf import DictConfig
from omegaconf import OmegaConf


def composed(name: str, *overrides: str) -> DictConfig:
    with initialize(version_base=None):
        config = compose(config_name=name, overrides=list(overrides))
    OmegaConf.resolve(config)
    return config


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("attention", ("system.input.dataset=any.zarr", "system.output.root=output")),
        ("attention_blizzard", ()),
        ("attention_blizzard", ("system.hardware.accelerator=cuda",)),
    ],
)
def test_passes_the_released_schema(name: str, overrides: tuple[str, ...]):
    from anemoi.training.schemas.base_schema import BaseSchema

    config = composed(name, *overrides)
    assert config.config_validation is True
    model = BaseSchema(**config).model
    assert model.processor.attention_implementation == "triton_attention"
    # Only the host's classes: a checkpoint opens without this package.
    assert model.processor.target_ == "anemoi.models.layers.processor.TransformerProcessor"


def test_defaults_of_the_host_are_kept():
    """`attention` is the released `config` with another model and graph, ready for a GPU."""
    ours = composed("attention", "system.input.dataset=any.zarr", "system.output.root=output")
    assert ours.system.hardware.accelerator == "cuda"
    for section in ("data", "dataloader", "task", "training"):
        theirs = composed(
            "config",
            "system.input.dataset=any.zarr",
            "system.input.graph=null",
            "system.output.root=output",
            "diagnostics.log.mlflow.tracking_uri=null",
        )
        assert ours[section] == theirs[section]


def test_config_validate(tmp_path: Path, cli):
    cli(tmp_path, "anemoi-training", "config", "validate", "--config-name=attention_blizzard")


def test_a_copy_in_the_working_directory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shipped = files("anemoi.plugins.attention.training.config").joinpath("attention_blizzard.yaml")
    shutil.copy(str(shipped), tmp_path / "attention_blizzard.yaml")
    text = (tmp_path / "attention_blizzard.yaml").read_text()
    (tmp_path / "attention_blizzard.yaml").write_text(text.replace("max_steps: 300", "max_steps: 7"))
    monkeypatch.chdir(tmp_path)
    assert composed("attention_blizzard").training.max_steps == 7
