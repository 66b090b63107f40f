# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The attention kernels against the oracle: windows, lengths, neighbours, options."""

import pytest
import torch
from kernel_checks import check
from kernel_checks import draw
from kernel_checks import oracle
from kernel_checks import with_gradients

from anemoi.plugins.attention.models.errors import UnsupportedProblem

GPU_DTYPES = [torch.float16, torch.bfloat16, torch.float32]

both_architectures = pytest.mark.usefixtures("architecture")


def fused(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
    from anemoi.plugins.attention.models.triton.attention import fused_attention

    return fused_attention(*tensors, **options)


@both_architectures
@pytest.mark.parametrize(("dtype", "magnitude"), [(torch.float16, 1.0), (torch.float16, 8.0), (torch.float32, 8.0)])
def test_matches(device: torch.device, dtype: torch.dtype, magnitude: float) -> None:
    query, *others = draw(1, 1, 97, 32, device=device, dtype=dtype)
    check([query * magnitude, *others], magnitude)


@pytest.mark.parametrize("window", [1, 15, 17, 31, 33])
def test_a02_window(device: torch.device, window: int) -> None:
    check(draw(1, 1, 257, 16, device=device, dtype=torch.float16), window_size=(window, window))


@both_architectures
@pytest.mark.parametrize("window_size", [(0, 7), (40, 3), (-1, 20), (20, -1), (-1, 0), (0, -1)])
def test_asymmetric_window(device: torch.device, window_size: tuple[int, int]) -> None:
    check(draw(1, 1, 100, 16, device=device, num_keys=141), window_size=window_size)


@both_architectures
def test_a03_window_of_zero(device: torch.device) -> None:
    query, key, value, d_out = draw(1, 2, 97, 16, device=device)
    out, d_query, d_key, d_value = check([query, key, value, d_out], window_size=(0, 0))
    torch.testing.assert_close(out, value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(d_value, d_out, rtol=1e-5, atol=1e-5)
    assert max(d_query.abs().max(), d_key.abs().max()) <= 1e-5


def test_a04_minus_one_is_global_and_below_is_an_error(device: torch.device) -> None:
    tensors = draw(1, 1, 40, 16, device=device)
    check(tensors, window_size=(-1, -1))
    with pytest.raises(ValueError, match="window_size"):
        fused(*tensors[:3], window_size=(-2, -2))


@pytest.mark.parametrize("excess", [lambda n: n - 1, lambda n: n, lambda n: 10 * n])
def test_a05_wide_window_is_global(device: torch.device, excess: object) -> None:
    tensors = draw(1, 1, 97, 16, device=device)
    wide = with_gradients(lambda *x: fused(*x, window_size=(excess(97), excess(97))), *tensors)
    for got, expected in zip(wide, with_gradients(fused, *tensors), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-5)


def test_a06_window_of_four_sees_nine_keys(device: torch.device) -> None:
    query, key, *_ = draw(1, 1, 64, 64, device=device)
    weights = fused(query, key, torch.eye(64, device=device)[None, None], window_size=(4, 4))[0, 0]
    index = torch.arange(64, device=device)
    assert torch.equal(weights > 0.0, (index[:, None] - index[None, :]).abs() <= 4)


@pytest.mark.parametrize("length", [1, 2, 15, 97, 127, 129, 200, 1025])
@pytest.mark.parametrize("window", [-1, 16])
def test_a07_length(device: torch.device, length: int, window: int) -> None:
    if device.type == "cpu" and length > 1000 and window < 0:
        pytest.skip("the interpreter needs half a minute")
    check(draw(1, 1, length, 16, device=device, dtype=torch.float16), window_size=(window, window))


@both_architectures
@pytest.mark.parametrize(
    ("batch", "heads", "foreign", "window"), [(1, 3, float("nan"), -1), (1, 3, 1e4, 16), (2, 1, float("nan"), 16)]
)
def test_a08_neighbouring_head_and_batch(
    device: torch.device, batch: int, heads: int, foreign: float, window: int
) -> None:
    tensors = [
        x.transpose(1, 2).contiguous().transpose(1, 2)
        for x in draw(batch, heads, 97, 16, device=device, dtype=torch.float16)
    ]
    mine = (batch // 2, heads // 2)
    options = {"window_size": (window, window)}
    alone = check([x[mine][None, None] for x in tensors], **options)
    for tensor in tensors:
        kept = tensor[mine].clone()
        tensor.fill_(foreign)
        tensor[mine] = kept
    together = with_gradients(lambda *x: fused(*x, **options), *tensors)
    for got, expected in zip(together, alone, strict=True):
        assert torch.equal(got[mine], expected[0, 0])


def test_a09_single_row_three_times(device: torch.device) -> None:
    for seed in range(3):
        _, d_query, d_key, _ = check(draw(1, 1, 1, 16, device=device, dtype=torch.float16, seed=seed))
        assert max(d_query.abs().max(), d_key.abs().max()) <= 1e-3


def test_a10_windowed_1025(device: torch.device) -> None:
    # The interpreter multiplies the bit patterns of bf16.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    check(draw(1, 1, 1025, 64, device=device, dtype=dtype), window_size=(100, 100))


@both_architectures
def test_a11_rows_without_key(device: torch.device) -> None:
    out, d_query, d_key, d_value = check(draw(1, 2, 129, 16, device=device, num_keys=1), window_size=(32, 32))
    assert not out[:, :, :96].any()
    assert not d_query[:, :, :96].any()
    assert out[:, :, 96:].any()


@both_architectures
@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 5), (5, 0)])
def test_no_rows(device: torch.device, num_queries: int, num_keys: int) -> None:
    tensors = [torch.randn(1, 2, n, 16, device=device) for n in (num_queries, num_keys, num_keys, num_queries)]
    for result in with_gradients(fused, *tensors):
        assert not result.any()


@pytest.mark.parametrize("head_dim", [8, 24, 40, 72, 80, 96, 160, 192, 256])
def test_a22_head_dim(device: torch.device, head_dim: int) -> None:
    query, *others = draw(1, 1, 70, head_dim, device=device, dtype=torch.float16)
    check([query * 2.0, *others], 2.0, window_size=(20, 30))


def test_a22_head_dim_that_is_not_served(device: torch.device) -> None:
    with pytest.raises(UnsupportedProblem, match=r"head_dim=320 \(at most 256\)"):
        fused(*[torch.zeros(1, 1, 4, 320, device=device)] * 3)


@both_architectures
@pytest.mark.parametrize("window", [-1, 30])
def test_a26_softcap(device: torch.device, window: int) -> None:
    query, *others = draw(1, 1, 100, 32, device=device)
    check([query * 8.0, *others], 8.0, softcap=5.0, window_size=(window, window))


@pytest.mark.parametrize(("per_batch", "softcap"), [(False, 0.0), (True, 4.0)])
def test_a26_alibi(device: torch.device, per_batch: bool, softcap: float) -> None:
    slopes = torch.rand((2, 2) if per_batch else (2,), device=device)
    tensors = draw(2, 2, 40, 16, device=device, num_keys=50)
    check(tensors, alibi_slopes=slopes, softcap=softcap, window_size=(20, -1))


def test_a26_alibi_slopes_are_constants(device: torch.device) -> None:
    slopes = torch.ones(1, device=device, requires_grad=True)
    with pytest.raises(UnsupportedProblem, match="alibi_slopes require a gradient"):
        fused(*draw(1, 1, 4, 16, device=device)[:3], alibi_slopes=slopes)


@both_architectures
@pytest.mark.parametrize("window", [-1, 30])
def test_a26_dropout(device: torch.device, window: int) -> None:
    from anemoi.plugins.attention.models.triton.attention import dropout_mask

    tensors = draw(1, 2, 50, 16, device=device, num_keys=60)
    mask = dropout_mask(tensors[0], tensors[1], dropout_p=0.3, dropout_seed=1 << 40)
    assert mask.double().mean().item() == pytest.approx(0.7, abs=0.02)
    check(tensors, dropout_mask=mask, dropout_p=0.3, dropout_seed=1 << 40, window_size=(window, window))


def test_a26_dropout_masks_differ_between_heads_and_seeds(device: torch.device) -> None:
    from anemoi.plugins.attention.models.triton.attention import dropout_mask

    query = torch.zeros(2, 2, 32, 16, device=device)
    masks = torch.cat([dropout_mask(query, query, dropout_p=0.5, dropout_seed=seed) for seed in (1, 2)])
    assert len({tuple(mask.flatten().tolist()) for mask in masks.flatten(0, 1)}) == 8


def test_a28_repeats_are_bitwise_equal(device: torch.device) -> None:
    tensors = draw(1, 1, 200 if device.type == "cuda" else 97, 32, device=device, dtype=torch.float16)
    first = with_gradients(lambda *x: fused(*x, window_size=(50, 50)), *tensors)
    for _ in range(50 if device.type == "cuda" else 2):
        again = with_gradients(lambda *x: fused(*x, window_size=(50, 50)), *tensors)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_scale_must_be_positive(device: torch.device, scale: float) -> None:
    with pytest.raises(UnsupportedProblem, match="softmax_scale"):
        fused(*draw(1, 1, 4, 16, device=device)[:3], softmax_scale=scale)


@both_architectures
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("window", [-1, 0, 16, 512])
@pytest.mark.parametrize("length", [97, 1025, 4096])
def test_a34_on_device(dtype: torch.dtype, head_dim: int, window: int, length: int) -> None:
    tensors = draw(1, 2, length, head_dim, device=torch.device("cuda"), dtype=dtype)
    # Where a gradient cancels to zero, what is left grows with the products that cancel.
    check(tensors, max(1.0, (head_dim / 64) ** 0.5), window_size=(window, window))


@both_architectures
@pytest.mark.gpu
def test_a14_large_inputs_in_bf16() -> None:
    tensors = [x * 4.0 for x in draw(1, 2, 1025, 64, device=torch.device("cuda"), dtype=torch.bfloat16)]
    check(tensors, 4.0)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("window", [-1, 200])
def test_a34_portable_kernels_where_others_are_preferred(
    head_dim: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anemoi.plugins.attention.models.triton.attention import launch

    monkeypatch.setattr(launch, "hopper", None)
    check(draw(1, 2, 1025, head_dim, device=torch.device("cuda"), dtype=torch.bfloat16), window_size=(window, window))


@pytest.mark.gpu
def test_a27_many_batches() -> None:
    check(draw(65536, 1, 16, 16, device=torch.device("cuda"), dtype=torch.float16))


@pytest.mark.gpu
@pytest.mark.slow
def test_a20_more_than_2_31_elements() -> None:
    length, rows = 1_060_001, 200
    tensors = [torch.randn(1, length, 16, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)]
    got = with_gradients(lambda *x: fused(*x, window_size=(32, 32)), *tensors)
    expected = oracle([x[:, -1:, -rows:].double() for x in tensors], window_size=(32, 32))
    for ours, wanted in zip(got, expected, strict=True):
        # The first rows of the excerpt miss the keys before it.
        error = (ours[:, -1:, -rows + 64 :].double() - wanted[:, :, 64:]).abs().max()
        assert error <= 0.05


@pytest.mark.gpu
def test_a30_another_length_compiles_nothing() -> None:
    from anemoi.plugins.attention.models.triton.attention.forward import _attention_fwd_kernel

    def run(length: int) -> int:
        tensors = draw(1, 2, length, 64, device=torch.device("cuda"), dtype=torch.bfloat16)
        with_gradients(lambda *x: fused(*x, window_size=(length // 3, 5)), *tensors)
        return sum(len(cache[0]) for cache in _attention_fwd_kernel.device_caches.values())

    # Strides that are multiples of 16, as the head dimension makes them, are all that is specialised on.
    counts = [run(length) for length in (40, 97, 128, 333, 1000)]
    assert counts[0] == counts[-1]
