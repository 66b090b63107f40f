# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Converting a checkpoint to another backend, and refusing to."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from checkpoint_files import build
from checkpoint_files import python
from checkpoint_files import stock_site
from checkpoint_files import write_stand_in

from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import InvalidCheckpoint
from anemoi.plugins.attention.models import InvalidOutput
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models import UnsupportedProblem
from anemoi.plugins.attention.models import override_backends
from anemoi.plugins.attention.models.checkpoint import load_checkpoint
from anemoi.plugins.attention.models.checkpoint import read_layers
from anemoi.plugins.attention.models.checkpoint.convert import convert_checkpoint

TRITON, SDPA, FLASH = "triton_attention", "scaled_dot_product_attention", "flash_attention"
OPEN = (
    "import sys, torch\n"
    "from anemoi.models.distributed.shapes import GraphShardInfo\n"
    "model = torch.load(sys.argv[1], weights_only=False).eval()\n"
    "out = model['self'](torch.ones(20, 32), GraphShardInfo(nodes=[20]), batch_size=1)\n"
    "print(type(model['self'].attention).__name__, out.shape, type(model['graph'].conv).__name__,\n"
    "    'anemoi.plugins' in sys.modules)\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def stock_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return packages like this environment's, without those of this repository."""
    return stock_site(tmp_path_factory.mktemp("stock") / "site")


def assert_same_but_for_the_backend(old: Path, new: Path) -> None:
    with zipfile.ZipFile(old) as first, zipfile.ZipFile(new) as second:
        extra = [name for name in first.namelist() if "anemoi-metadata/" in name]
        assert len(extra) == 3
        assert extra == [name for name in second.namelist() if "anemoi-metadata/" in name]
        assert all(first.read(name) == second.read(name) for name in extra)
        assert second.testzip() is None
    before, after = (load_checkpoint(path).state_dict() for path in (old, new))
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) and before[key].dtype == after[key].dtype for key in before)


@pytest.mark.parametrize("name", ["stock", "flash2", "flash3", "flash4", "graph", "older_host"])
def test_to_every_backend_that_needs_nothing(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    for transformer, graph in ((TRITON, "triton"), (SDPA, "pyg")):
        target = tmp_path / f"{transformer}.ckpt"
        layers = convert_checkpoint(files[name], target, transformer=transformer, graph_transformer=graph)
        assert [layer.backend for layer in layers] == [transformer, transformer, graph]
        assert layers == read_layers(target)
        assert_same_but_for_the_backend(files[name], target)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{SDPA}.ckpt", f"{TRITON}.ckpt"]


def test_to_flash_and_back(files: dict[str, Path], tmp_path: Path) -> None:
    forth, back = tmp_path / "forth.ckpt", tmp_path / "back.ckpt"
    program = (
        "import sys; from anemoi.plugins.attention.models.checkpoint.convert import convert_checkpoint\n"
        "print(convert_checkpoint(sys.argv[1], sys.argv[2], transformer='flash')[0])"
    )
    stand_in = write_stand_in(tmp_path / "stand-in", 2)
    printed = python(program, str(files["stock"]), str(forth), path=stand_in)
    assert (
        "('anemoi.models.layers.attention', 'FlashAttentionWrapper'), ('flash_attn.interface', 'flash_attn" in printed
    )
    convert_checkpoint(forth, back, transformer="sdpa")
    assert_same_but_for_the_backend(files["stock"], forth)
    assert_same_but_for_the_backend(files["stock"], back)


def test_one_kind_leaves_the_other(files: dict[str, Path], tmp_path: Path) -> None:
    layers = convert_checkpoint(files["graph"], tmp_path / "out.ckpt", transformer=TRITON)
    assert [layer.backend for layer in layers] == [TRITON, TRITON, "triton"]


@pytest.mark.parametrize(("source", "backend"), [("flash4", SDPA), ("stock", TRITON)])
def test_opens_and_runs_without_this_package(
    files: dict[str, Path], tmp_path: Path, stock_packages: Path, source: str, backend: str
) -> None:
    target = tmp_path / "out.ckpt"
    convert_checkpoint(files[source], target, transformer=backend, graph_transformer="pyg")
    printed = python(OPEN, str(target), site=stock_packages)
    assert "SDPAAttentionWrapper torch.Size([20, 32]) GraphTransformerConv False" in printed


def test_rotary_embeddings_without_this_package_say_what_to_install(
    files: dict[str, Path], tmp_path: Path, stock_packages: Path
) -> None:
    target = tmp_path / "out.ckpt"
    convert_checkpoint(files["rotary"], target, transformer=TRITON)
    assert_same_but_for_the_backend(files["rotary"], target)
    printed = python(OPEN, str(target), site=stock_packages)
    sentence = (
        "AssertionError: To open this checkpoint, install the package anemoi-plugins-attention-models: its attention "
        "has rotary embeddings, which anemoi-models leaves out."
    )
    assert sentence in printed
    # With the package, also by torch itself.
    for model in (torch.load(target, weights_only=False), load_checkpoint(target)):
        assert model["self"].attention.rotary
        assert model["self"].attention.backend == TRITON


def test_rotary_embeddings_are_not_dropped(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProblem, match=r"'self': it has rotary embeddings.*Allowed: triton_attention, flash"):
        convert_checkpoint(files["rotary"], tmp_path / "out.ckpt", transformer=SDPA)
    assert not list(tmp_path.iterdir())


def test_options_that_a_backend_does_not_offer(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProblem) as raised:
        convert_checkpoint(files["softcap"], tmp_path / "out.ckpt", transformer=SDPA)
    message = str(raised.value)
    assert message.startswith(f"Backend '{SDPA}' cannot run the layer 'self' (and 1 more): softcap=0.5 (not offered), ")
    assert "alibi_slopes (not offered)" in message
    assert "Usable for it here: triton_attention" in message
    assert not list(tmp_path.iterdir())


def test_an_override_refuses_options_and_changes_nothing(files: dict[str, Path]) -> None:
    model = load_checkpoint(files["softcap"]).eval()
    # Other layers of the model could have the backend.
    model["self"].softcap, model["self"].use_alibi_slopes, model["self"].alibi_slopes = None, False, None
    held = [model["self"].attention, model["cross"].attention, model["graph"].conv]
    with pytest.raises(UnsupportedProblem, match=r"cannot run the layer 'cross': softcap=0.5 \(not offered\)"):
        override_backends(model, transformer=SDPA, graph_transformer="pyg")
    assert [model["self"].attention, model["cross"].attention, model["graph"].conv] == held
    assert model["self"].attention_implementation == FLASH
    override_backends(model, transformer=TRITON)


def test_dropout_counts_in_training_alone(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from anemoi.plugins.attention.models.attention_backends import transformer_backends

    monkeypatch.setattr(type(transformer_backends()[TRITON]), "supports_dropout", False)
    model = load_checkpoint(files["softcap"])
    with pytest.raises(UnsupportedProblem, match=r"'self' \(and 1 more\): dropout_p=0.1 \(not offered\)"):
        override_backends(model.train(), transformer=TRITON)
    override_backends(model.eval(), transformer=TRITON)


def test_flash_that_is_not_installed(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"flash_attention.*is not installed.*machine that has it"):
        convert_checkpoint(files["stock"], tmp_path / "out.ckpt", transformer=FLASH)
    assert not list(tmp_path.iterdir())


def test_wrong_names(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnknownBackend, match="Did you mean 'triton'"):
        convert_checkpoint(files["stock"], tmp_path / "out.ckpt", transformer="trtion")


def test_a_kind_of_layer_that_is_not_there(tmp_path: Path) -> None:
    source = tmp_path / "linear.ckpt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), source)
    with pytest.raises(UnsupportedProblem, match=r"no transformer attention layer.*Kinds of layer in it: none"):
        convert_checkpoint(source, tmp_path / "out.ckpt", transformer=TRITON)


@pytest.mark.parametrize("how", ["same", "spelled", "symlink", "hardlink"])
def test_the_source_is_never_written(files: dict[str, Path], tmp_path: Path, how: str) -> None:
    source = tmp_path / "in.ckpt"
    source.write_bytes(files["stock"].read_bytes())
    target = {"same": source, "spelled": tmp_path / "." / ".." / tmp_path.name / "in.ckpt"}.get(how, tmp_path / "out")
    if how == "symlink":
        target.symlink_to(source)
    elif how == "hardlink":
        target.hardlink_to(source)
    for overwrite in (False, True):
        with pytest.raises(InvalidOutput, match="it is the checkpoint to convert, which is never changed"):
            convert_checkpoint(source, target, transformer=TRITON, overwrite=overwrite)
    assert source.read_bytes() == files["stock"].read_bytes()


def test_an_existing_file_is_kept_unless_told(files: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "out.ckpt"
    target.write_text("mine")
    with pytest.raises(InvalidOutput, match="the file exists"):
        convert_checkpoint(files["stock"], target, transformer=TRITON)
    assert target.read_text() == "mine"
    convert_checkpoint(files["stock"], target, transformer=TRITON, overwrite=True)
    assert_same_but_for_the_backend(files["stock"], target)


def test_nothing_is_left_of_a_conversion_that_fails(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.ckpt"
    target.write_text("mine")
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        convert_checkpoint(files["stock"], target, transformer=TRITON, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.ckpt"]
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "problem"), [("", "it is a directory"), ("missing/out.ckpt", "there is no directory")]
)
def test_targets_that_are_no_files(files: dict[str, Path], tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(InvalidOutput, match=problem):
        convert_checkpoint(files["stock"], tmp_path / name, transformer=TRITON, overwrite=True)


def test_a_training_checkpoint_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "last.ckpt"
    torch.save({"pytorch-lightning_version": "2.5", "state_dict": {}}, source)
    with pytest.raises(InvalidCheckpoint, match=r"training checkpoint of Lightning.*Take the inference checkpoint"):
        convert_checkpoint(source, tmp_path / "out.ckpt", transformer=TRITON)


def test_the_name_of_the_file_does_not_matter(files: dict[str, Path], tmp_path: Path) -> None:
    """The metadata name their arrays by the top folder of the archive, which torch calls like the file."""
    from anemoi.utils.checkpoints import load_metadata

    source = tmp_path / "renamed.v2.ckpt"
    source.write_bytes(files["stock"].read_bytes())
    convert_checkpoint(source, tmp_path / "out.v3.ckpt", transformer=TRITON)
    _, arrays = load_metadata(str(tmp_path / "out.v3.ckpt"), supporting_arrays=True)
    assert arrays["data"]["latitudes"].shape == (7,)
    assert_same_but_for_the_backend(source, tmp_path / "out.v3.ckpt")


def test_a_rotary_layer_is_copied_and_pickled_as_itself(files: dict[str, Path]) -> None:
    import copy

    model = load_checkpoint(files["rotary"])
    override_backends(model, transformer=TRITON)
    for copied in (copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
        assert copied(model["self"].attention).rotary


def test_permissions_are_kept(files: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "in.ckpt"
    source.write_bytes(files["stock"].read_bytes())
    source.chmod(0o640)
    convert_checkpoint(source, tmp_path / "out.ckpt", transformer=TRITON)
    assert os.stat(tmp_path / "out.ckpt").st_mode & 0o777 == 0o640
