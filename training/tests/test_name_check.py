# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Case C49: names of backends are checked when a configuration is validated."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.training import name_check

PLACES = {
    "model.processor.attention_implementation": "triton_attention",
    "model.processor.graph_attention_backend": "pyg",
    "model.encoders.0.mapper.graph_attention_backend": "pyg",
    "model.encoders.0.mapper.attention_implementation": "triton_attention",
    "model.decoders.in.mapper.graph_attention_backend": "pyg",
}


def model_with(place: str, name: object) -> dict:
    config = OmegaConf.create({})
    OmegaConf.update(config, place, name)
    return config["model"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["trtion", "", "TRITON_ATTENTION", None, 3])
def test_c49_unknown_names_are_refused(place: str, name: object):
    with pytest.raises(UnknownBackend) as caught:
        name_check.check_model(model_with(place, name))
    message = str(caught.value)
    assert message.startswith(f"{place} names no attention backend: {name!r}")
    assert PLACES[place] in message


def test_c49_closest_name_is_offered():
    with pytest.raises(UnknownBackend, match=r"Did you mean 'triton'\?"):
        name_check.check_model(model_with("model.processor.attention_implementation", "trtion"))


@pytest.mark.parametrize("name", ["triton", "triton_attention", "flash_attention", "scaled_dot_product_attention"])
def test_c49_names_and_aliases_pass(name: str):
    name_check.check_model(model_with("model.processor.attention_implementation", name))


@pytest.mark.parametrize("model", [None, "x", {}, {"processor": None}, {"encoders": {"0": None}}, {"decoders": []}])
def test_other_faults_are_left_to_the_schema(model: object):
    name_check.check_model(model)


def test_a_value_still_missing_is_left_to_the_schema():
    name_check.check_model(model_with("model.processor.attention_implementation", "???"))


def test_install_is_additive_idempotent_and_reversible():
    class Schema:
        def __init__(self, **data: object) -> None:
            self.data = data

    original = Schema.__init__
    name_check.install(Schema)
    name_check.install(Schema)
    assert Schema(model={}, other=1).data == {"model": {}, "other": 1}
    with pytest.raises(UnknownBackend):
        Schema(model={"processor": {"attention_implementation": "trtion"}})
    name_check.uninstall(Schema)
    name_check.uninstall(Schema)
    assert Schema.__init__ is original
    assert Schema(model={"processor": {"attention_implementation": "trtion"}}).data["model"]


def test_c49_train_refuses_before_anything_is_built(tmp_path: Path, cli):
    """The host ends with status 0 when pydantic refuses a configuration; a queue would take that for success."""
    done = cli(
        tmp_path,
        "anemoi-training",
        "train",
        "--config-name=attention_blizzard",
        "model.processor.attention_implementation=trtion",
        check=False,
    )
    assert done.returncode != 0
    assert "model.processor.attention_implementation names no attention backend: 'trtion'" in done.stdout
    assert "Did you mean 'triton'?" in done.stdout


@pytest.mark.parametrize(("name", "accepted"), [("pgy", False), ("pyg", True)])
def test_c49_config_validate(tmp_path: Path, cli, name: str, accepted: bool):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [attention_blizzard, _self_]\n"
        f'model: {{processor: {{attention_implementation: triton}}, decoders: {{"0": {{mapper: '
        f"{{graph_attention_backend: {name}}}}}}}}}\n"
    )
    done = cli(tmp_path, "anemoi-training", "config", "validate", "--config-name=mine", check=False)
    assert (done.returncode == 0) is accepted, done.stdout
    if not accepted:
        assert "model.decoders.0.mapper.graph_attention_backend names no attention backend: 'pgy'" in done.stdout
