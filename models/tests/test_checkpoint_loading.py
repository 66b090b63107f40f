# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Checkpoints whose attention code is not installed open, and nothing else changes."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_files import build
from checkpoint_files import python
from checkpoint_files import write_stand_in
from torch import nn

from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import disable
from anemoi.plugins.attention.models import enable
from anemoi.plugins.attention.models import override_backends
from anemoi.plugins.attention.models.checkpoint import load_checkpoint
from anemoi.plugins.attention.models.checkpoint import read_layers
from anemoi.plugins.attention.models.checkpoint import require_complete
from anemoi.plugins.attention.models.integration import attention_layers

pytestmark = pytest.mark.usefixtures("enabled_plugin")
TRITON, SDPA = "triton_attention", "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def stock(files: dict[str, Path]) -> Path:
    """Return a checkpoint of the stock SDPA."""
    return files["stock"]


@pytest.fixture(params=["flash2", "flash3", "flash4"])
def flash(request: pytest.FixtureRequest, files: dict[str, Path]) -> Path:
    """Return a checkpoint of flash-attention in each of its generations, which is not installed here."""
    return files[request.param]


def forward(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    from anemoi.models.distributed.shapes import BipartiteGraphShardInfo
    from anemoi.models.distributed.shapes import GraphShardInfo

    pair = BipartiteGraphShardInfo(src_nodes=[len(x)], dst_nodes=[len(x) // 2])
    first = model["self"](x, GraphShardInfo(nodes=[len(x)]), batch_size=1)
    return [first, model["cross"]((x, x[: len(x) // 2]), pair, batch_size=1)]


def is_flash_importable() -> bool:
    return any(name.partition(".")[0] in ("flash_attn", "flash_attn_interface") for name in sys.modules)


def test_d4_flash_checkpoint_opens_without_flash(flash: Path, stock: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'flash_attn"):
        torch.load(flash, weights_only=False)
    model = load_checkpoint(flash, map_location="cpu").eval()
    weights = copy.deepcopy(model.state_dict())
    assert not is_flash_importable()
    with pytest.raises(ModuleNotFoundError, match="No module named 'flash_attn") as raised:
        require_complete(model)
    assert "'self.attention.attention' needs flash_attn" in raised.value.__notes__[-1]
    reports = override_backends(model, transformer=SDPA)
    require_complete(model)
    assert {(report.previous, report.backend) for report in reports[:2]} == {("flash_attention", SDPA)}
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    expected = load_checkpoint(stock).eval()
    assert list(expected.state_dict()) == list(weights)
    override_backends(expected, transformer=TRITON)
    x = torch.randn(20, 32)
    for ours, theirs in zip(forward(model, x), forward(expected, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not is_flash_importable()


def test_layers_are_read_without_loading(flash: Path) -> None:
    layers = read_layers(flash)
    assert [layer.spec.path for layer in layers] == [path for path, _, _ in attention_layers(load_checkpoint(flash))]
    assert [layer.backend for layer in layers] == ["flash_attention", "flash_attention", "pyg"]
    first = layers[0].spec
    assert (first.num_heads, first.head_dim, first.window_size) == (4, 8, 4)
    (missing,) = layers[0].missing()
    assert missing.startswith("flash_attn")
    assert missing.endswith(".flash_attn_func")
    assert layers[0].dtype == torch.float32
    assert not layers[2].missing()


def test_what_stands_for_flash_cannot_be_called(flash: Path) -> None:
    disable()
    model = load_checkpoint(flash).eval()
    with pytest.raises(ModuleNotFoundError, match="No module named 'flash_attn"):
        forward(model, torch.randn(8, 32))


def test_d14_rotary_checkpoint_of_flash_v2(files: dict[str, Path]) -> None:
    model = load_checkpoint(files["rotary"]).eval()
    override_backends(model, transformer=SDPA)
    require_complete(model)
    x = torch.randn(20, 32)
    rotated = forward(model, x)
    for _, kind, layer in attention_layers(model):
        if kind == "transformer":
            assert layer.attention.rotary
            layer.attention.rotary = False
    assert not torch.allclose(rotated[0], forward(model, x)[0])


def test_d14_the_stock_wrapper_compares_a_string_with_a_version_and_ours_does_not(tmp_path: Path) -> None:
    stand_in = write_stand_in(tmp_path, 2)
    (stand_in / "flash_attn" / "__init__.py").write_text(
        "from .interface import flash_attn_func\n__version__ = '2.7.4'\n"
    )
    program = (
        "import sys, torch; torch.cuda.is_available = lambda: True\n"
        "from anemoi.models.layers.attention import MultiHeadSelfAttention\n"
        "from anemoi.models.layers.utils import load_layer_kernels\n"
        "if sys.argv[1] == 'ours': from anemoi.plugins.attention.models import enable; enable()\n"
        "layer = MultiHeadSelfAttention(4, 32, load_layer_kernels(), attention_implementation='flash_attention',\n"
        "    use_rotary_embeddings=True)\n"
        "print(layer.attention)\n"
    )
    assert "TypeError" in python(program, "stock", path=stand_in)
    assert "backend=flash_attention, rotary" in python(program, "ours", path=stand_in)


@pytest.mark.parametrize("name", ["older_host", "older_plugin"])
def test_classes_that_newer_releases_removed(files: dict[str, Path], name: str) -> None:
    path = files[name]
    with pytest.raises((ImportError, AttributeError)):
        torch.load(path, weights_only=False)
    model = load_checkpoint(path)
    override_backends(model, transformer=TRITON)
    require_complete(model)
    assert model["self"].attention.backend == TRITON
    assert "anemoi.plugins.attention.models.older_module" not in sys.modules


def test_d5_graph_kernel_without_triton(files: dict[str, Path]) -> None:
    program = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from anemoi.plugins.attention.models import enable, override_backends; enable()\n"
        "from anemoi.plugins.attention.models.checkpoint import load_checkpoint, require_complete\n"
        "try: torch.load(sys.argv[1], weights_only=False)\n"
        "except ValueError as error: print('stock:', error)\n"
        "model = load_checkpoint(sys.argv[1]); print(override_backends(model)[-1]); require_complete(model)\n"
        "print(type(model['graph'].conv).__name__)\n"
    )
    printed = python(program, str(files["graph"]))
    assert "stock: Error. The 'triton' backend" in printed
    assert "previous='triton', backend='pyg'" in printed
    assert printed.strip().endswith("GraphTransformerConv")


@pytest.mark.parametrize("name", ["foreign", "removed"])
def test_anything_else_that_is_missing_fails_as_ever(files: dict[str, Path], name: str) -> None:
    with pytest.raises((ImportError, AttributeError)) as stock_error:
        torch.load(files[name], weights_only=False)
    with pytest.raises(type(stock_error.value)) as ours:
        load_checkpoint(files[name])
    assert str(ours.value) == str(stock_error.value)


def test_own_backend_that_is_not_installed(flash: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"flash-attention is not installed.*Usable here: triton_attention"):
        override_backends(load_checkpoint(flash))


def test_d9_a_saved_mask_goes(tmp_path: Path, stock: Path) -> None:
    disable()
    model = torch.load(stock, weights_only=False).eval()
    x = torch.randn(200, 32)
    expected = forward(model, x[:120])[0]
    masked = tmp_path / "masked.ckpt"
    fresh = torch.load(stock, weights_only=False).eval()
    # The stock module keeps the mask of its first input, and pickles it.
    forward(fresh, x)
    torch.save(fresh, masked)
    assert fresh["self"].attention.attn_mask.shape == (200, 200)
    enable()
    loaded = load_checkpoint(masked).eval()
    override_backends(loaded, transformer=SDPA)
    torch.testing.assert_close(forward(loaded, x[:120])[0], expected)
    torch.save(loaded, tmp_path / "unmasked.ckpt")
    assert (tmp_path / "unmasked.ckpt").stat().st_size < masked.stat().st_size - 2 * 200 * 100


@pytest.mark.parametrize("name", [TRITON, SDPA])
@pytest.mark.parametrize("window", [0, 3, None])
def test_d10_windows_of_cross_attention_are_aligned_at_the_end(stock: Path, name: str, window: int | None) -> None:
    """Row i of the queries sits at i + N_k - N_q among the keys, on every backend."""
    model = load_checkpoint(stock).eval()
    override_backends(model, transformer=name)
    layer = model["cross"]
    layer.window_size = window
    x = torch.randn(20, 32)
    out = forward(model, x)[1]
    query, key, value = layer.lin_q(x[:10]), layer.lin_k(x), layer.lin_v(x)
    query, key, value = (rows.unflatten(1, (4, 8)).transpose(0, 1) for rows in (query, key, value))
    scores = query @ key.transpose(1, 2) / 8**0.5
    distance = torch.arange(10)[:, None] + 10 - torch.arange(20)
    if window is not None:
        scores = scores.masked_fill(distance.abs() > window, -torch.inf)
    expected = layer.projection((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
    torch.testing.assert_close(out, expected)
