# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention operator inside torch: layouts, compilation, checkpointing, streams of gradients."""

import pytest
import torch
from kernel_checks import check
from kernel_checks import draw
from kernel_checks import with_gradients
from torch.utils.checkpoint import checkpoint


def fused(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
    from anemoi.plugins.attention.models.triton.attention import fused_attention

    return fused_attention(*tensors, **options)


@pytest.mark.usefixtures("architecture")
def test_a18_rows_of_a_linear_layer_are_read_in_place(device: torch.device) -> None:
    from anemoi.plugins.attention.models.triton.attention.calls import readable

    batch, length, heads, head_dim = 2, 33, 2, 16
    tensors = []
    for seed in range(4):
        # (batch grid) (heads vars) -> batch heads grid vars
        rows = draw(1, 1, batch * length, heads * head_dim, device=device, seed=seed)[0]
        tensors.append(rows.view(batch, length, heads, head_dim).transpose(1, 2))
    assert all(readable(tensor) is tensor for tensor in tensors)
    out, *gradients = check(tensors, window_size=(9, 9))
    # Output and gradients come in the layout of the inputs, so that going back is a view.
    assert out.transpose(1, 2).is_contiguous()
    assert all(gradient.stride() == tensors[0].stride() for gradient in gradients)


@pytest.mark.usefixtures("architecture")
def test_a18_fused_projection(device: torch.device) -> None:
    from anemoi.plugins.attention.models.triton.attention.calls import readable

    batch, length, heads, head_dim = 2, 33, 2, 16
    rows = draw(1, 1, batch * length, 3 * heads * head_dim, device=device)[0]
    query, key, value = rows.view(batch, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    assert readable(query) is query
    check([query, key, value, torch.randn_like(query)])


@pytest.mark.usefixtures("architecture")
@pytest.mark.parametrize("layout", ["transposed", "expanded", "offset", "row of one"])
def test_other_layouts(device: torch.device, layout: str) -> None:
    shape = (2, 2, 1 if layout == "row of one" else 20, 16)
    query, key, value, d_out = draw(*shape, device=device)
    if layout == "transposed":
        key = key.transpose(2, 3).contiguous().transpose(2, 3)
    elif layout == "expanded":
        key = key[:, :1].expand(shape)
    elif layout == "offset":
        # Rows that start off a 16-byte boundary.
        key = torch.nn.functional.pad(key, (1, 2))[..., 1:-2]
    check([query, key, value, d_out])


def test_gradient_that_is_expanded(device: torch.device) -> None:
    *tensors, d_out = draw(1, 2, 20, 16, device=device)
    check([*tensors, d_out[:, :, :1, :1].expand(d_out.shape)])


def test_a38_opcheck(device: torch.device) -> None:
    from anemoi.plugins.attention.models.triton.attention.op import _attention_forward

    query, key, value, _ = (x.requires_grad_() for x in draw(1, 1, 12, 16, device=device))
    slopes, seed = torch.ones(1, 1, device=device), torch.ones(1, dtype=torch.int64, device=device)
    torch.library.opcheck(_attention_forward, (query, key, value, slopes, seed, 5, 5, 0.25, 4.0, 0.1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a38_compile_fullgraph(device: torch.device, dynamic: bool) -> None:
    torch._dynamo.reset()
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(
        lambda *x: fused(*x, window_size=(5, 5)) * 2.0, fullgraph=True, dynamic=dynamic, backend=backend
    )
    for length in (12, 17):
        tensors = draw(1, 1, length, 16, device=device)
        got = with_gradients(compiled, *tensors)
        expected = with_gradients(lambda *x: fused(*x, window_size=(5, 5)) * 2.0, *tensors)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_a39_checkpointing(device: torch.device, use_reentrant: bool, dropout_p: float) -> None:
    tensors = draw(1, 2, 20, 16, device=device)
    results = []
    for wrap in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=use_reentrant)):
        torch.manual_seed(3)
        leaves = [x.clone().requires_grad_() for x in tensors[:3]]
        out = wrap(lambda *x: fused(*x, dropout_p=dropout_p), *leaves)
        out.backward(tensors[3])
        results.append([out, *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dropout_seed(device: torch.device) -> None:
    query, key, value, _ = draw(1, 1, 20, 16, device=device)
    runs = [fused(query, key, value, dropout_p=0.5, dropout_seed=seed) for seed in (1, 1, 2, None, None)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[3], runs[4])


def test_reasons_on_a_device_without_triton(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from anemoi.plugins.attention.models.triton.attention import op

    monkeypatch.setattr(op, "_INTERPRETED", False)
    query = torch.zeros(1, 1, 4, 320, dtype=torch.float64)
    assert op.unsupported_reasons(query, query, query) == [
        "dtype=float64 (one of float16, bfloat16, float32)",
        "head_dim=320 (at most 256)",
        "device=cpu (needs cuda)",
    ]
    assert not op.unsupported_reasons(*[torch.zeros(1, 1, 4, 64, device=device)] * 3) or device.type == "cpu"


@pytest.mark.gpu
def test_a40_cuda_graph() -> None:
    tensors = draw(1, 2, 200, 64, device=torch.device("cuda"), dtype=torch.bfloat16)
    expected = with_gradients(fused, *tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = with_gradients(fused, *tensors)
    for result in got:
        result.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a37_another_device_than_the_current_one() -> None:
    check(draw(1, 2, 97, 32, device=torch.device("cuda:1"), dtype=torch.float16))
