# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The backend ``triton_attention`` in the graph-transformer layers of the released anemoi-models."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import python
from checkpoint_files import stock_site
from torch import nn

pytest.importorskip("anemoi.models", reason="these are its layers")

from graph_models import CHANNELS
from graph_models import OURS
from graph_models import PYG
from graph_models import GraphTransformer
from graph_models import inputs
from graph_models import random_graph
from graph_models import randomised
from graph_models import step

from anemoi.plugins.attention.models import GraphLayout
from anemoi.plugins.attention.models.attention_backends.graph_transformer import triton_attention
from anemoi.plugins.attention.models.graph.functional import TRITON
from anemoi.plugins.attention.models.integration import attention_layers

pytestmark = pytest.mark.usefixtures("enabled_plugin")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count which form of the attention runs."""
    called: list[str] = []
    for name in ("run", "run_factorised"):
        original = getattr(triton_attention.TritonGraphAttentionBackend, name)

        def counted(*args: Any, _name: str = name, _original: Any = original) -> Any:
            called.append(_name)
            return _original(*args)

        monkeypatch.setattr(triton_attention.TritonGraphAttentionBackend, name, counted)
    return called


def assert_same_step(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        scale = value.abs().max().clamp(min=1.0)
        torch.testing.assert_close(got[name] / scale, value / scale, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("mapper_chunks", [1, 4])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"edge_pre_mlp": True}], ids=str)
def test_same_outputs_and_gradients_as_pyg(
    calls: list[str], batch_size: int, mapper_chunks: int, options: dict[str, Any]
) -> None:
    ours, pyg = (
        randomised(GraphTransformer(backend, mapper_chunks=mapper_chunks, **options)) for backend in (OURS, PYG)
    )
    assert ours.state_dict().keys() == pyg.state_dict().keys()
    data = inputs(batch_size)
    assert_same_step(step(ours, *data, batch_size=batch_size), step(pyg, *data, batch_size=batch_size))
    assert set(calls) == {"run_factorised"}


def test_g61_two_samples_are_two_single_ones() -> None:
    model = randomised(GraphTransformer())
    data, hidden = inputs(2)
    with torch.no_grad():
        both = model(data, hidden, batch_size=2)
        single = [model(*pair) for pair in zip(data.chunk(2), hidden.chunk(2), strict=True)]
    torch.testing.assert_close(both, torch.cat(single), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mapper_chunks", [2, 4])
def test_g60_chunks_of_the_mappers_change_nothing(mapper_chunks: int) -> None:
    whole, parts = (randomised(GraphTransformer(mapper_chunks=chunks)) for chunks in (1, mapper_chunks))
    assert_same_step(step(parts, *inputs()), step(whole, *inputs()))


class Doubled(nn.Linear):
    """An edge projection that is no plain linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


@pytest.mark.parametrize("how", ["subclass", "hook", "parametrisation"])
def test_other_edge_projections_are_run_as_they_are(calls: list[str], how: str) -> None:
    def changed(backend: str) -> GraphTransformer:
        model = randomised(GraphTransformer(backend))
        for block in [model.encoder.proc, *model.processor.modules(), model.decoder.proc]:
            linear = getattr(block, "lin_edge", None)
            if linear is None:
                continue
            if how == "subclass":
                linear.__class__ = Doubled
            elif how == "hook":
                linear.register_forward_hook(lambda module, args, out: 2.0 * out)
            else:
                nn.utils.parametrizations.weight_norm(linear)
        return model

    assert_same_step(step(changed(OURS), *inputs()), step(changed(PYG), *inputs()))
    assert set(calls) == {"run"}


def test_nothing_of_the_size_of_projected_edges_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the torch path keeps the sources' rows of each edge; the kernels do not")
    monkeypatch.setattr(triton_attention, "_implementation", lambda value: TRITON)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    num_edges = 500
    graph = random_graph(num_edges)
    kept: dict[str, int] = {}
    for backend in (OURS, PYG):
        model = randomised(GraphTransformer(backend, graph=graph, gradient_checkpointing=False)).to(device)
        largest = 0

        def note(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal largest
            largest = max(largest, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(*(tensor.to(device) for tensor in inputs()))
        kept[backend] = largest
    edges = torch.float32.itemsize * num_edges * CHANNELS
    assert kept[PYG] >= edges
    assert kept[OURS] < edges


@pytest.mark.parametrize("mapper_chunks", [1, 4])
def test_layouts_are_built_once(monkeypatch: pytest.MonkeyPatch, mapper_chunks: int) -> None:
    built = []
    original = GraphLayout.from_edge_index.__func__

    def counted(cls: type, *args: Any, **kwargs: Any) -> GraphLayout:
        built.append(args[0].shape)
        return original(cls, *args, **kwargs)

    monkeypatch.setattr(GraphLayout, "from_edge_index", classmethod(counted))
    model = randomised(GraphTransformer(num_layers=3, mapper_chunks=mapper_chunks))
    for _ in range(3):
        # The host checkpoints its layers: each forward is run twice.
        step(model, *inputs())
    # Encoder and decoder, whole or cut, and one for all layers of the processor.
    assert len(built) == 2 * mapper_chunks + 1, built


def test_a_pickled_model_is_a_stock_one_and_comes_back(tmp_path: Path) -> None:
    model = randomised(GraphTransformer()).eval()
    data = inputs()
    with torch.no_grad():
        expected = model(*data)
    again = pickle.loads(pickle.dumps(model))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        torch.testing.assert_close(again(*data), expected, rtol=0, atol=0)
        torch.testing.assert_close(copied(*data), expected, rtol=0, atol=0)
    assert {layer.graph_attention_backend for _, _, layer in attention_layers(again)} == {OURS}
    torch.save((model, data, expected), tmp_path / "model.pt")
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
model, data, expected = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
with torch.no_grad():
    print("off by", (model(*data) - expected).abs().max().item())
assert not [name for name in sys.modules if name.startswith("anemoi.plugins")]
"""
    printed = python(program, site=stock_site(tmp_path / "site"))
    assert float(printed.rpartition("off by ")[2]) < 1e-5


def test_edges_on_another_device_are_named() -> None:
    model = randomised(GraphTransformer())
    edge_index = torch.zeros(2, 3, dtype=torch.long, device="meta")
    block = next(layer for _, _, layer in attention_layers(model))
    rows = torch.randn(4, 4, CHANNELS // 4)
    with pytest.raises(ValueError, match=r"edge_index\) are on meta, the nodes on cpu"):
        block.conv(rows, rows, rows, torch.randn(3, 4, CHANNELS // 4), edge_index)


def test_autocast_keeps_sums_in_fp32() -> None:
    ours, pyg = (randomised(GraphTransformer(backend)) for backend in (OURS, PYG))
    exact = step(pyg, *inputs())["out"]
    with torch.autocast("cpu", torch.bfloat16):
        got, stock = (step(model, *inputs())["out"].float() for model in (ours, pyg))
    assert (got - exact).norm() <= 1.5 * (stock - exact).norm()
