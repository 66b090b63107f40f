# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Cases beside the plain comparison with the oracle: causal, fp32 accuracy, autocast, sizes, memory, peers."""

import pytest
import torch
from compile_configurations import prepare
from compile_configurations import signature
from kernel_checks import NAMES
from kernel_checks import check
from kernel_checks import draw
from kernel_checks import oracle
from kernel_checks import with_gradients
from torch import Tensor

from anemoi.plugins.attention.models import attention
from anemoi.plugins.attention.models.triton.attention import calls
from anemoi.plugins.attention.models.triton.attention import configurations
from anemoi.plugins.attention.models.triton.attention import fused_attention
from anemoi.plugins.attention.models.triton.attention import launch

CUDA = torch.device("cuda")


class FlashAttention2(torch.autograd.Function):
    """FlashAttention-2 as torch ships it; ``[B, N, H, D]``."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
        length = query.shape[1]
        ctx.limits = {"window_size_left": window, "window_size_right": window}
        out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            query, key, value, None, None, length, length, 0.0, False, False, scale=None, **ctx.limits
        )
        ctx.save_for_backward(query, key, value, out, lse, seed, offset)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, lse, seed, offset = ctx.saved_tensors
        n = d_out.shape[1]
        gradients = torch.ops.aten._flash_attention_backward(
            d_out, *tensors, lse, None, None, n, n, 0.0, False, seed, offset, **ctx.limits
        )
        return (*gradients, None)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, window: int = -1) -> Tensor:
    return FlashAttention2.apply(*(x.transpose(1, 2) for x in (query, key, value)), window).transpose(1, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [-1, 100])
def test_a14_error_beside_flash_attention(window: int) -> None:
    tensors = [x * 4.0 for x in draw(1, 2, 1025, 64, device=CUDA, dtype=torch.bfloat16)]
    limits = {"window_size": (window, window)}
    expected = oracle([x.double() for x in tensors], **limits)
    ours = with_gradients(lambda *x: fused_attention(*x, **limits), *tensors)
    theirs = with_gradients(lambda *x: flash_attention(*x, window), *tensors)
    for name, got, peer, wanted in zip(NAMES, ours, theirs, expected, strict=True):
        error, allowed = ((x.double() - wanted).norm() / wanted.norm() for x in (got, peer))
        assert error <= 2.0 * allowed, name


@pytest.mark.parametrize("window", [-1, 12])
def test_a16_causal(device: torch.device, window: int) -> None:
    _, _, d_key, _ = check(draw(1, 1, 70, 16, device=device), window_size=(window, 0))
    assert d_key.any()


def to_tf32(tensor: Tensor) -> Tensor:
    """Round to the 10 bits of fraction that a tf32 product reads."""
    return ((tensor.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_a24_fp32_asks_for_fp32_products(head_dim: int) -> None:
    for architecture in configurations.ARCHITECTURES:
        for direction in configurations.DIRECTIONS:
            call = prepare(architecture, direction, "float32", head_dim, True)
            assert call.constants["PRECISION"] in ("tf32x3", "ieee")


@pytest.mark.parametrize("head_dim", [16, pytest.param(64, marks=pytest.mark.gpu), 256])
def test_a24_fp32_accuracy(device: torch.device, head_dim: int) -> None:
    tensors = draw(1, 1, 50, head_dim, device=device)
    expected = oracle([x.double() for x in tensors])
    got = with_gradients(fused_attention, *tensors)
    in_tf32 = oracle([to_tf32(x).double() for x in tensors])
    for name, *results, wanted in zip(NAMES, got, in_tf32, expected, strict=True):
        error, error_of_tf32 = ((x.double() - wanted).norm() / wanted.norm() for x in results)
        # The bound would catch tf32, whose products have errors of a few 1e-4.
        assert error < 1e-5 < error_of_tf32, name


@pytest.mark.gpu
@pytest.mark.parametrize("window_size", [None, 30])
def test_a25_autocast_with_norms(window_size: int | None) -> None:
    rows = [x.transpose(1, 2) for x in draw(1, 2, 130, 64, device=CUDA)]
    norm = torch.nn.LayerNorm(64, device=CUDA)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        query, key = norm(rows[0]).transpose(1, 2), norm(rows[1]).transpose(1, 2)
        value = rows[2].to(torch.bfloat16).transpose(1, 2)
        assert query.dtype == torch.float32
        out = attention(query, key, value, window_size=window_size, backend="triton_attention")
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert norm.weight.grad.isfinite().all()
    assert norm.weight.grad.any()
    limits = (-1, -1) if window_size is None else (window_size, window_size)
    check([x.detach().to(torch.bfloat16) for x in (query, key, value, rows[3].transpose(1, 2))], window_size=limits)


def test_a27_grid_is_one_dimension() -> None:
    # The second and third hold 65,535 programs.
    rows = torch.zeros(65536, 1, 16, 16, dtype=torch.float16)
    call = launch.forward_call(*[rows] * 4, calls.empty_lse(rows), calls.Options(-1, -1, 0.25), "sm_90")
    assert call.grid == 65536


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("direction", configurations.DIRECTIONS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_90/explicit"])
def test_a30_another_length_is_the_same_kernel(architecture: str, direction: str, windowed: bool) -> None:
    if architecture.endswith("explicit") and (direction == "forward") == windowed:
        pytest.skip("a portable kernel serves there")
    # What Triton compiles for: types, constants, and which integers are multiples of 16.
    first, second = (
        signature(prepare(architecture, direction, "bfloat16", 64, windowed, num_rows=n)) for n in (40320, 40333)
    )
    assert first == second


@pytest.mark.gpu
def test_a30_a_production_length_plus_thirteen() -> None:
    # Kernels that this process has not seen may still be loaded for the first length, none for the second.
    tensors = draw(1, 1, 40333, 64, device=CUDA, dtype=torch.bfloat16)
    run = lambda n: with_gradients(  # noqa: E731
        lambda *x: fused_attention(*x, window_size=(512, 512)), *(x[:, :, :n] for x in tensors)
    )
    run(40320)
    before = compiled_kernels()
    run(40333)
    assert compiled_kernels() == before


def compiled_kernels() -> int:
    kernels = {
        launch._attention_fwd_kernel,
        launch._attention_bwd_query_kernel,
        launch._attention_bwd_key_value_kernel,
    }
    if launch.hopper is not None:
        kernels |= {
            launch.hopper._hopper_fwd_kernel,
            launch.hopper._hopper_bwd_query_kernel,
            launch.hopper._hopper_bwd_key_value_kernel,
        }
    return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())


def test_a31_window_then_none(device: torch.device) -> None:
    tensors = draw(1, 1, 97, 16, device=device, dtype=torch.float16)
    check(tensors, window_size=(20, 20))
    check(tensors, window_size=(-1, -1))
    rows = torch.zeros(1, 1, 1024, 64, dtype=torch.bfloat16)
    found = [
        launch.forward_call(*[rows] * 4, calls.empty_lse(rows), calls.Options(w, w, 0.125), "sm_90") for w in (512, -1)
    ]
    assert [call.constants["WINDOWED"] for call in found] == [True, False]
    assert [call.configuration.block_m for call in found] == [64, 128]


@pytest.mark.gpu
@pytest.mark.parametrize("window", [-1, 512])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_peak_memory_is_at_most_that_of_flash_attention(head_dim: int, window: int) -> None:
    torch.use_deterministic_algorithms(False)
    # The layout of a linear layer's rows, which flash-attention reads without a copy.
    tensors = [torch.randn(1, 16384, 8, head_dim, device=CUDA, dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)]
    peaks = []
    functions = (lambda *x: fused_attention(*x, window_size=(window, window)), lambda *x: flash_attention(*x, window))
    for function in functions:
        with_gradients(function, *tensors)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        with_gradients(function, *tensors)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] <= peaks[1]
