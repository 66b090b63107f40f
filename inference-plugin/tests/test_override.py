# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Swapping backends on models that the runner did not make itself."""

import logging
import time
from pathlib import Path

import pytest
import torch
from anemoi.models.layers.attention import MultiHeadCrossAttention
from anemoi.models.layers.block import GraphTransformerProcessorBlock
from anemoi.models.layers.mapper import TransformerForwardMapper
from anemoi.models.layers.processor import TransformerProcessor
from anemoi.models.layers.utils import load_layer_kernels
from anemoi.utils.checkpoints import save_metadata

from anemoi.plugins.attention.inference.checks import check_run
from anemoi.plugins.attention.inference.options import AttentionOptions
from anemoi.plugins.attention.inference.override import apply_choices
from anemoi.plugins.attention.inference.selection import Choice
from anemoi.plugins.attention.models.integration import attention_layers

SDPA = "scaled_dot_product_attention"


def test_c48_every_block_of_a_mapper_gets_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    """The released cross-attention ignores the override (D3)."""
    caplog.set_level(logging.INFO)
    mapper = TransformerForwardMapper(
        in_channels_src=8,
        in_channels_dst=6,
        num_channels=16,
        num_chunks=1,
        num_heads=4,
        mlp_hidden_ratio=2,
        window_size=None,
        attention_implementation="triton_attention",
        layer_kernels=None,
        cpu_offload=False,
    )
    reports = apply_choices(mapper, [Choice("transformer", SDPA, "runner.attention.transformer")], "cpu")
    layers = [layer for _, _, layer in attention_layers(mapper)]
    assert any(isinstance(layer, MultiHeadCrossAttention) for layer in layers)
    assert all(layer.attention.backend == SDPA for layer in layers)
    assert [report.backend for report in reports] == [SDPA] * len(layers)
    assert "from runner.attention.transformer, the checkpoint says triton_attention." in caplog.text


def test_the_override_costs_little(tmp_path: Path) -> None:
    """Under half a second more than loading takes; it is some milliseconds."""
    processor = TransformerProcessor(
        num_layers=8,
        num_channels=256,
        num_chunks=2,
        num_heads=16,
        mlp_hidden_ratio=4,
        window_size=512,
        attention_implementation=SDPA,
        layer_kernels=None,
    )
    path = tmp_path / "model.ckpt"
    torch.save(processor, path)
    save_metadata(path, {"version": "1.0"})
    loaded = torch.load(path, weights_only=False)
    began = time.perf_counter()
    choices = (Choice("transformer", "triton_attention", "runner.attention.transformer"),)
    check_run(str(path), choices, AttentionOptions(), torch.device("cpu"))
    reports = apply_choices(loaded, choices, "cpu")
    assert time.perf_counter() - began < 0.5
    assert [report.backend for report in reports] == ["triton_attention"] * 8


def test_choice_without_a_layer_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    apply_choices(torch.nn.Linear(2, 2), [Choice("transformer", SDPA, "runner.attention.transformer")], "cpu")
    assert f"runner.attention.transformer={SDPA} has no effect" in caplog.text


def test_c51_graph_kernel_of_the_checkpoint_on_a_cpu_beside_a_gpu(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody chose `triton`, the checkpoint was trained with it, and the run is on the CPU of a machine with a GPU."""
    caplog.set_level(logging.INFO)
    block = GraphTransformerProcessorBlock(
        in_channels=16,
        hidden_dim=16,
        out_channels=16,
        num_heads=4,
        edge_dim=3,
        layer_kernels=load_layer_kernels(),
        graph_attention_backend="pyg",
    )
    block.graph_attention_backend = "triton"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (report,) = apply_choices(block, [], "cpu")
    assert (report.previous, report.backend) == ("triton", "pyg")
    assert "graph_transformer=pyg (runs on every device) in 1 layer, as the checkpoint's triton cannot" in caplog.text
