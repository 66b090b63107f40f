# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The plugin in the released anemoi-models."""

import copy
import logging
import os
import pickle
import subprocess
import sys

import pytest
import torch
from anemoi.models.layers import attention as host
from anemoi.models.layers import block as host_block
from anemoi.models.layers.mapper import TransformerForwardMapper
from anemoi.models.layers.utils import load_layer_kernels
from torch import nn

from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models import disable
from anemoi.plugins.attention.models import enable
from anemoi.plugins.attention.models import override_backends
from anemoi.plugins.attention.models.environment import VARIABLES
from anemoi.plugins.attention.models.integration import attention_layers
from anemoi.plugins.attention.models.integration.attention_module import AttentionModule

TRITON, SDPA = "triton_attention", "scaled_dot_product_attention"
VARIABLE = VARIABLES["transformer"]
GRAPH_VARIABLE = VARIABLES["graph_transformer"]
STOCK = {
    (host, "ATTENTION_BACKEND"): host.ATTENTION_BACKEND,
    (host_block, "ATTENTION_BACKEND"): host_block.ATTENTION_BACKEND,
    (host.MultiHeadSelfAttention, "set_attention_function"): host.MultiHeadSelfAttention.set_attention_function,
    (host.MultiHeadSelfAttention, "attention_computation"): host.MultiHeadSelfAttention.attention_computation,
    (host_block.GraphTransformerBaseBlock, "set_attention_function"): (
        host_block.GraphTransformerBaseBlock.set_attention_function
    ),
    (host_block.GraphTransformerBaseBlock, "apply_gt"): host_block.GraphTransformerBaseBlock.apply_gt,
}


@pytest.fixture(autouse=True)
def _plugin(enabled_plugin: None) -> None:
    torch.manual_seed(1996)


def self_attention(name: str, window_size: int | None = 4, **options: object) -> nn.Module:
    kernels = load_layer_kernels()
    return host.MultiHeadSelfAttention(
        4, 32, kernels, window_size=window_size, attention_implementation=name, **options
    ).eval()


def cross_attention(name: str) -> nn.Module:
    return host.MultiHeadCrossAttention(4, 32, load_layer_kernels(), attention_implementation=name).eval()


def graph_block(name: str) -> nn.Module:
    return host_block.GraphTransformerProcessorBlock(
        in_channels=16,
        hidden_dim=16,
        out_channels=16,
        num_heads=4,
        edge_dim=3,
        layer_kernels=load_layer_kernels(),
        graph_attention_backend=name,
    ).eval()


def forward(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from anemoi.models.distributed.shapes import BipartiteGraphShardInfo
    from anemoi.models.distributed.shapes import GraphShardInfo

    if isinstance(layer, host.MultiHeadCrossAttention):
        shard_info = BipartiteGraphShardInfo(src_nodes=[len(x)], dst_nodes=[len(x) // 2])
        return layer((x, x[: len(x) // 2]), shard_info, batch_size=1)
    return layer(x, GraphShardInfo(nodes=[len(x)]), batch_size=1)


def graph_forward(block: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4, 4), (6, 4, 4), (6, 4, 4), (10, 4, 4)]
    query, key, value, edges = (torch.randn(*shape, generator=generator) for shape in shapes)
    edge_index = torch.stack([torch.randint(0, 6, (10,), generator=generator), torch.arange(10).clamp(max=5)])
    return block.apply_gt(query, key, value, edges, edge_index, size=6)


def test_enable_is_additive_idempotent_and_reversible() -> None:
    patched = {key: getattr(*key) for key in STOCK}
    enable()
    assert {key: getattr(*key) for key in STOCK} == patched
    disable()
    assert {key: getattr(*key) for key in STOCK} == STOCK
    with pytest.raises(AssertionError, match="not supported"):
        self_attention(TRITON)
    assert type(self_attention(SDPA).attention) is host.SDPAAttentionWrapper
    enable()
    assert self_attention(TRITON).attention.backend == TRITON


def test_enable_imports_no_host_and_patches_it_later() -> None:
    program = (
        "import sys; from anemoi.plugins.attention.models import enable; enable(); "
        "assert not any(name.startswith('anemoi.models') for name in sys.modules), 'host imported'; "
        "from anemoi.models.layers.attention import MultiHeadSelfAttention; "
        "assert 'anemoi.plugins' in MultiHeadSelfAttention.set_attention_function.__module__"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_models_work_without_the_hosts() -> None:
    program = (
        "import sys\n"
        "for host in ('models', 'training', 'graphs', 'inference'): sys.modules[f'anemoi.{host}'] = None\n"
        "import torch; from anemoi.plugins.attention.models import attention\n"
        "attention(*torch.randn(3, 1, 2, 8, 16).unbind(), window_size=2)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("make", [self_attention, cross_attention])
@pytest.mark.parametrize("name", [TRITON, "triton", SDPA])
def test_layers_equal_the_stock_ones(make, name: str) -> None:
    x = torch.randn(40, 32)
    ours = make(name)
    disable()
    stock = make(SDPA)
    stock.load_state_dict(ours.state_dict())
    # The stock mask of cross-attention is aligned differently where a window is set; here it is global.
    torch.testing.assert_close(forward(ours, x), forward(stock, x))


def test_names_that_only_the_host_knows_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    disable()
    stock = host.MultiHeadSelfAttention.set_attention_function

    def newer_host(layer: nn.Module) -> None:
        if layer.attention_implementation != "newer":
            stock(layer)
        layer.attention = host.SDPAAttentionWrapper()

    monkeypatch.setattr(host.MultiHeadSelfAttention, "set_attention_function", newer_host)
    enable()
    layer = self_attention("newer", window_size=None)
    attention = layer.attention
    assert forward(layer, torch.randn(8, 32)).shape == (8, 32)
    assert layer.attention is attention
    assert self_attention(TRITON).attention.backend == TRITON
    with pytest.raises(UnknownBackend, match="Did you mean 'triton'"):
        self_attention("trtion")
    disable()


def test_wrong_and_unavailable_names_fail_when_the_layer_is_built() -> None:
    with pytest.raises(UnknownBackend, match="Did you mean 'triton'"):
        self_attention("trtion")
    with pytest.raises(BackendUnavailable, match=r"flash-attention is not installed.*Usable here: triton_attention"):
        self_attention("flash_attention")


def test_softcap_alibi_and_dropout_of_the_layer_are_honoured() -> None:
    x = torch.randn(20, 32)
    plain = self_attention(TRITON)
    optioned = self_attention(TRITON, softcap=0.5, use_alibi_slopes=True)
    optioned.load_state_dict(plain.state_dict())
    assert not torch.allclose(forward(plain, x), forward(optioned, x))
    dropping = self_attention(TRITON, dropout_p=0.5)
    dropping.load_state_dict(plain.state_dict())
    torch.testing.assert_close(forward(dropping, x), forward(plain, x))
    dropping.train()
    assert not torch.allclose(forward(dropping, x), forward(plain, x))


@pytest.mark.parametrize("name", [TRITON, SDPA])
def test_rotary_embeddings_are_honoured_and_survive_pickling(name: str) -> None:
    x = torch.randn(20, 32)
    plain, rotary = self_attention(name), self_attention(name, use_rotary_embeddings=True)
    rotary.load_state_dict(plain.state_dict())
    assert list(rotary.state_dict()) == list(plain.state_dict())
    out = forward(rotary, x)
    assert not torch.allclose(out, forward(plain, x))
    torch.testing.assert_close(forward(pickle.loads(pickle.dumps(rotary)), x), out)
    torch.testing.assert_close(forward(copy.deepcopy(rotary), x), out)


def test_a_stock_sdpa_checkpoint_that_names_rotary_runs_as_it_was_trained(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(20, 32)
    disable()
    stock = self_attention(SDPA, use_rotary_embeddings=True)
    expected = forward(stock, x)
    enable()
    layer = pickle.loads(pickle.dumps(stock))
    torch.testing.assert_close(forward(layer, x), expected)
    assert "run as it was trained" in caplog.text
    override_backends(layer, transformer=TRITON)
    torch.testing.assert_close(forward(layer, x), expected)


@pytest.mark.parametrize("make", [self_attention, cross_attention])
def test_c48_d3_environment_reaches_self_and_cross_attention(make, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = pickle.loads(pickle.dumps(make(TRITON)))
    monkeypatch.setenv(VARIABLE, SDPA)
    forward(layer, torch.randn(20, 32))
    assert layer.attention.backend == SDPA
    assert layer.attention_implementation == SDPA


def test_c48_every_block_of_a_transformer_mapper_reports_the_backend() -> None:
    mapper = TransformerForwardMapper(
        in_channels_src=8,
        in_channels_dst=6,
        num_channels=16,
        num_chunks=1,
        num_heads=4,
        mlp_hidden_ratio=2,
        window_size=None,
        attention_implementation=TRITON,
        layer_kernels=None,
        cpu_offload=False,
    )
    reports = override_backends(mapper, transformer=SDPA)
    assert reports
    assert {(report.kind, report.previous, report.backend) for report in reports} == {("transformer", TRITON, SDPA)}
    crosses = [layer for _, _, layer in attention_layers(mapper) if isinstance(layer, host.MultiHeadCrossAttention)]
    assert crosses
    assert all(layer.attention.backend == SDPA for layer in crosses)


def test_c50_swapping_keeps_the_state_dict_and_the_outputs() -> None:
    model = nn.ModuleList([self_attention(TRITON), cross_attention(TRITON), graph_block("pyg")])
    x = torch.randn(40, 32)
    before = copy.deepcopy(model.state_dict())
    outputs = [forward(layer, x) for layer in model[:2]]
    reports = override_backends(model, transformer=SDPA, graph_transformer="pyg")
    assert [(report.path, report.backend) for report in reports] == [("0", SDPA), ("1", SDPA), ("2", "pyg")]
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    for layer, out in zip(model[:2], outputs, strict=True):
        torch.testing.assert_close(forward(layer, x), out)


def test_override_changes_nothing_if_a_name_is_wrong_or_unavailable() -> None:
    model = nn.ModuleList([self_attention(TRITON), graph_block("pyg")])
    with pytest.raises(UnknownBackend):
        override_backends(model, transformer=SDPA, graph_transformer="triton_atention")
    with pytest.raises(BackendUnavailable):
        override_backends(model, transformer="flash_attention")
    assert model[0].attention.backend == TRITON


def test_override_without_a_choice_reports_and_prepares() -> None:
    layer = pickle.loads(pickle.dumps(self_attention(TRITON)))
    assert [report.backend for report in override_backends(layer)] == [TRITON]
    assert isinstance(layer.attention, AttentionModule)


def test_a_trained_layer_opens_without_the_plugin() -> None:
    # The program has the host alone: unpickling must not ask for this package.
    layer = self_attention(TRITON)
    program = (
        "import sys; sys.modules['anemoi.plugins'] = None\n"
        "import pickle; layer = pickle.load(sys.stdin.buffer); print(type(layer.attention).__name__)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES.values()}
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(layer),
        check=True,
        capture_output=True,
        timeout=120,
        env=environment,
    )
    assert found.stdout.decode().strip() == "SDPAAttentionWrapper"


def test_a42_one_module_serves_lengths_and_pickles_without_a_mask() -> None:
    layer = self_attention(TRITON)
    size = len(pickle.dumps(layer))
    for length in (64, 96, 64):
        assert forward(layer, torch.randn(length, 32)).shape == (length, 32)
    assert len(pickle.dumps(layer)) == size
    assert isinstance(copy.deepcopy(layer).attention, AttentionModule)


def test_d2_environment_equal_to_the_configured_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TRITON)
    monkeypatch.setenv(GRAPH_VARIABLE, "pyg")
    forward(self_attention(TRITON), torch.randn(8, 32))
    assert graph_forward(graph_block("pyg")).shape == (6, 4, 4)


def test_d7_environment_is_read_when_a_model_is_set_up_not_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = pickle.dumps(self_attention(TRITON))
    for name in (SDPA, TRITON):
        monkeypatch.setenv(VARIABLE, name)
        layer = pickle.loads(saved)
        forward(layer, torch.randn(8, 32))
        assert layer.attention.backend == name


def test_c47_environment_changed_after_the_set_up_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = self_attention(TRITON)
    monkeypatch.setenv(VARIABLE, SDPA)
    forward(layer, torch.randn(8, 32))
    assert layer.attention.backend == TRITON


def test_wrong_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "trtion")
    with pytest.raises(UnknownBackend, match=f"^{VARIABLE} names no attention backend: 'trtion'"):
        self_attention(TRITON)


def test_d8_layers_pickled_before_the_host_had_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    block, layer = graph_block("pyg"), self_attention(TRITON)
    del block._attention_backend_applied, layer._attention_backend_applied
    monkeypatch.setenv(GRAPH_VARIABLE, "pyg")
    assert graph_forward(block).shape == (6, 4, 4)
    assert forward(layer, torch.randn(8, 32)).shape == (8, 32)


def test_d5_d13_graph_blocks_without_a_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert graph_block("pyg").graph_attention_backend == "pyg"
    assert "triton" not in caplog.text
    expected = graph_forward(graph_block("pyg"))
    torch.testing.assert_close(graph_forward(graph_block("triton")), expected)
    monkeypatch.setenv(GRAPH_VARIABLE, "triton")
    with pytest.raises(BackendUnavailable, match="no CUDA device"):
        graph_block("pyg")
