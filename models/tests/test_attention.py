# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""``attention()`` on a CPU: every backend that runs there, against the oracle in float64."""

from contextlib import nullcontext

import einops
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models import UnsupportedProblem
from anemoi.plugins.attention.models import attention
from anemoi.plugins.attention.models.banded import banded_attention
from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention

CPU_BACKENDS = ["triton_attention", "scaled_dot_product_attention", "flex_attention"]
# flex_attention computes unfused on a CPU: all N x N scores.
WITHOUT_N_X_N = ["triton_attention", "scaled_dot_product_attention"]


def random_tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[Tensor]:
    return [(scale * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_() for shape in shapes]


def qkv(
    num_queries: int, num_keys: int | None = None, heads: int = 2, dim: int = 16, **options: object
) -> list[Tensor]:
    keys = num_queries if num_keys is None else num_keys
    shapes = [(2, heads, n, dim) for n in (num_queries, keys, keys)]
    return random_tensors(*shapes, **options)


def forward_and_gradients(out: Tensor, tensors: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    return (out, *torch.autograd.grad(out, tensors, gradient))


def assert_matches_reference(tensors: list[Tensor], backend: str, **options: object) -> None:
    reference = reference_attention(make_problem(*tensors, **options))
    gradient = torch.randn_like(reference)
    out = attention(*tensors, backend=backend, **options)
    expected = forward_and_gradients(reference, tensors, gradient)
    for got, wanted in zip(forward_and_gradients(out, tensors, gradient), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1996)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("window_size", [1, 15, 17, 31, 33])
def test_a02_odd_windows(backend: str, window_size: int) -> None:
    assert_matches_reference(qkv(257), backend, window_size=window_size)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a03_window_zero_is_the_own_position(backend: str) -> None:
    query, key, value = tensors = qkv(33)
    out = attention(query, key, value, window_size=0, backend=backend)
    gradient = torch.randn_like(out)
    d_query, d_key, d_value = torch.autograd.grad(out, tensors, gradient)
    torch.testing.assert_close(out, value)
    torch.testing.assert_close(d_value, gradient)
    assert d_query.abs().max() < 1e-12
    assert d_key.abs().max() < 1e-12


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a04_none_and_minus_one_are_global(backend: str) -> None:
    tensors = qkv(20)
    expected = reference_attention(make_problem(*tensors))
    for window_size in (None, -1, (-1, -1), (None, None)):
        torch.testing.assert_close(attention(*tensors, window_size=window_size, backend=backend), expected)
    with pytest.raises(ValueError, match="window_size=-2"):
        attention(*tensors, window_size=-2, backend=backend)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("factor", [19, 20, 200])
def test_a05_wide_windows_are_global(backend: str, factor: int) -> None:
    tensors = qkv(20)
    expected = reference_attention(make_problem(*tensors))
    torch.testing.assert_close(attention(*tensors, window_size=factor, backend=backend), expected)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a06_exactly_the_keys_in_the_window(backend: str) -> None:
    # With the identity as values, the output is the weights.
    query, key = (torch.randn(1, 1, 30, 30) for _ in range(2))
    weights = attention(query, key, torch.eye(30)[None, None], window_size=4, backend=backend)[0, 0]
    distance = (torch.arange(30)[:, None] - torch.arange(30)[None, :]).abs()
    assert torch.equal(weights > 0, distance <= 4)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("window_size", [None, 16])
@pytest.mark.parametrize("length", [1, 2, 15, 97, 127, 129, 200, 1025])
def test_a07_any_length(backend: str, length: int, window_size: int | None) -> None:
    assert_matches_reference(qkv(length, heads=1), backend, window_size=window_size)


@pytest.mark.parametrize("poison", [float("nan"), 1e4])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a08_neighbouring_heads_do_not_leak(backend: str, poison: float) -> None:
    tensors = [tensor.detach() for tensor in qkv(97, heads=3)]
    clean = attention(*tensors, window_size=16, backend=backend)
    for tensor in tensors:
        tensor[:, 1] = poison
    poisoned = attention(*tensors, window_size=16, backend=backend)
    assert torch.equal(poisoned[:, [0, 2]], clean[:, [0, 2]])


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a09_single_row_in_half_precision(backend: str) -> None:
    for _ in range(3):
        tensors = random_tensors(*[(1, 1, 1, 16)] * 3, dtype=torch.float16)
        out = attention(*tensors, backend=backend)
        d_query, _, _ = torch.autograd.grad(out, tensors, torch.randn_like(out))
        assert torch.isfinite(d_query).all()
        assert d_query.abs().max() < 1e-3


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a10_bfloat16_in_a_window(backend: str) -> None:
    tensors = qkv(1025, heads=1, dtype=torch.bfloat16)
    out = attention(*tensors, window_size=16, backend=backend)
    expected = reference_attention(make_problem(*(tensor.double() for tensor in tensors), window_size=16))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a11_rows_without_a_key_are_zero(backend: str) -> None:
    tensors = qkv(129, 1)
    out = attention(*tensors, window_size=32, backend=backend)
    gradients = torch.autograd.grad(out, tensors, torch.randn_like(out))
    # Position i - 128 is within 32 of key 0 from row 96 on.
    assert torch.equal(out[:, :, :96], torch.zeros_like(out[:, :, :96]))
    assert out[:, :, 96:].abs().min() > 0
    assert torch.equal(gradients[0][:, :, :96], torch.zeros_like(out[:, :, :96]))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert_matches_reference(tensors, backend, window_size=32)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a18_views_as_the_host_makes_them(backend: str) -> None:
    batch, grid, heads, dim = 2, 40, 3, 16
    fused = torch.randn(batch * grid, 3 * heads * dim, dtype=torch.float64, requires_grad=True)
    tensors = [
        einops.rearrange(part, "(batch grid) (heads vars) -> batch heads grid vars", batch=batch, heads=heads)
        for part in fused.chunk(3, dim=-1)
    ]
    out = attention(*tensors, window_size=5, backend=backend)
    expected = reference_attention(make_problem(*(t.contiguous() for t in tensors), window_size=5))
    gradient = torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, fused, gradient)[0], torch.autograd.grad(expected, fused, gradient)[0]
    )


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(
    "options", [{"window_size": (3, 40)}, {"causal": True}, {"window_size": 9, "causal": True}, {"softmax_scale": 0.7}]
)
@pytest.mark.parametrize("lengths", [(60, 60), (40, 90), (90, 40)])
def test_options_and_cross_attention(backend: str, options: dict[str, object], lengths: tuple[int, int]) -> None:
    assert_matches_reference(qkv(*lengths), backend, **options)


@pytest.mark.parametrize("backend", ["triton_attention", "flex_attention"])
@pytest.mark.parametrize("lengths", [(70, 70), (30, 90), (90, 30)])
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 4.0},
        {"alibi_slopes": torch.tensor([0.1, 0.2])},
        {"alibi_slopes": torch.tensor([[0.1, 0.2], [0.3, 0.0]]), "softcap": 4.0, "window_size": (9, 2)},
    ],
)
def test_softcap_and_alibi(backend: str, lengths: tuple[int, int], options: dict[str, object]) -> None:
    assert_matches_reference(qkv(*lengths), backend, **options)


@pytest.mark.parametrize("options", [{}, {"softcap": 4.0, "alibi_slopes": torch.tensor([0.1, 0.2])}])
@pytest.mark.parametrize("tile_size", [1, 16, 33, 1000])
@pytest.mark.parametrize("lengths", [(70, 70), (30, 90), (90, 30)])
@pytest.mark.parametrize("window_size", [0, 5, (2, 20), (None, 3)])
def test_tiles_change_nothing(
    tile_size: int, lengths: tuple[int, int], window_size: object, options: dict[str, object]
) -> None:
    tensors = qkv(*lengths)
    problem = make_problem(*tensors, window_size=window_size, **options)
    expected = reference_attention(problem)
    gradient = torch.randn_like(expected)
    got = forward_and_gradients(banded_attention(problem, tile_size), tensors, gradient)
    for ours, wanted in zip(got, forward_and_gradients(expected, tensors, gradient), strict=True):
        torch.testing.assert_close(ours, wanted)


def test_banded_path_has_second_derivatives() -> None:
    tensors = random_tensors(*[(1, 1, 7, 2)] * 3)
    for options, kernels in (({"softcap": 3.0}, []), ({}, [SDPBackend.MATH])):
        with sdpa_kernel(kernels) if kernels else nullcontext():
            assert torch.autograd.gradgradcheck(
                lambda *qkv, options=options: banded_attention(make_problem(*qkv, window_size=2, **options), 3),
                tensors,
            )


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any result has had."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("backend", WITHOUT_N_X_N)
@pytest.mark.parametrize("window_size", [16, 1024])
def test_a41_no_tensor_of_length_squared(backend: str, window_size: int) -> None:
    length, layers = 8192, 4
    tensors = random_tensors(*[(1, 1, length, 8)] * 3, dtype=torch.float32)
    with LargestTensor() as seen:
        out = tensors[0]
        for _ in range(layers):
            out = attention(out, *tensors[1:], window_size=window_size, backend=backend)
        out.sum().backward()
    assert length * 8 <= seen.numel <= 4 * max(256, window_size) * max(256, window_size)
    assert seen.numel < length * length / 8


def test_dropout_keeps_the_mean_and_scales_the_rest() -> None:
    query, key = (torch.randn(1, 1, 8, 8).expand(2000, 1, 8, 8) for _ in range(2))
    # With the identity as values, the output is the weights after dropout.
    identity = torch.eye(8).expand(2000, 1, 8, 8)
    weights = attention(query, key, identity)
    dropped = attention(query, key, identity, dropout_p=0.25)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)
    torch.testing.assert_close(dropped[kept], (weights / 0.75)[kept])


def test_autocast_mixes_dtypes_and_returns_that_of_value() -> None:
    query, key, value = qkv(40, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(query, key, value.to(torch.bfloat16), window_size=4)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("options", [{}, {"window_size": 8}, {"window_size": 8, "softcap": 3.0}])
@pytest.mark.parametrize("backend", ["triton_attention", "flex_attention", "auto"])
def test_a38_compiles_without_a_break(backend: str, options: dict[str, object], device: str) -> None:
    # torch counts how often it has compiled the same code, and gives up after some.
    torch._dynamo.reset()
    tensors = [tensor.detach().to(device).requires_grad_() for tensor in qkv(300, heads=1, dtype=torch.float32)]
    compiled = torch.compile(
        lambda *qkv: attention(*qkv, backend=backend, **options), fullgraph=True, backend="aot_eager"
    )
    gradient = torch.randn_like(tensors[0])
    got = forward_and_gradients(compiled(*tensors), tensors, gradient)
    expected = forward_and_gradients(attention(*tensors, backend=backend, **options), tensors, gradient)
    for ours, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("backend", ["scaled_dot_product_attention", "flash_attention", "flex_attention"])
@pytest.mark.parametrize(("option", "value"), [("softcap", 5.0), ("alibi_slopes", torch.ones(2)), ("dropout_p", 0.1)])
def test_a26_options_are_honoured_or_refused(backend: str, option: str, value: object) -> None:
    tensors = [torch.randn(1, 2, 64, 8) for _ in range(3)]
    plain = attention(*tensors)
    assert not torch.allclose(attention(*tensors, backend="triton_attention", **{option: value}), plain)
    if (backend, option) == ("scaled_dot_product_attention", "dropout_p"):
        assert not torch.allclose(attention(*tensors, backend=backend, dropout_p=0.1), plain)
        return
    if backend == "flex_attention" and option != "dropout_p":
        expected = reference_attention(make_problem(*tensors, **{option: value}))
        torch.testing.assert_close(attention(*tensors, backend=backend, **{option: value}), expected)
        return
    with pytest.raises(NotImplementedError, match=r"Usable here: .*triton_attention"):
        attention(*tensors, backend=backend, **{option: value})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 4, 8)] * 3, r"\[B, H, N, D\]"),
        ([(1, 2, 4, 8), (1, 3, 4, 8), (1, 3, 4, 8)], "do not fit"),
        ([(1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 5, 8)], "do not fit"),
    ],
)
def test_wrong_shapes_are_refused(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(*(torch.randn(shape) for shape in shapes))


def test_wrong_dtypes_and_options_are_refused() -> None:
    query, key, value = (torch.randn(1, 2, 4, 8) for _ in range(3))
    with pytest.raises(ValueError, match="differ in dtype"):
        attention(query, key, value.half())
    with pytest.raises(ValueError, match="floating-point"):
        attention(query.long(), key.long(), value.long())
    with pytest.raises(ValueError, match=r"dropout_p=1\.5"):
        attention(query, key, value, dropout_p=1.5)
    with pytest.raises(ValueError, match="softcap=-1"):
        attention(query, key, value, softcap=-1.0)
    with pytest.raises(ValueError, match="one slope a head"):
        attention(query, key, value, alibi_slopes=torch.ones(3))
    for option, value_given in [
        ("softmax_scale", float("nan")),
        ("softmax_scale", "1"),
        ("softcap", float("inf")),
        ("dropout_p", None),
        ("alibi_slopes", [0.5, 0.5]),
    ]:
        with pytest.raises(ValueError, match=rf"{option}.*Allowed"):
            attention(query, key, value, **{option: value_given})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("options", [{}, {"window_size": 2}, {"causal": True}])
@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)])
def test_no_rows_or_no_keys(backend: str, options: dict[str, object], lengths: tuple[int, int]) -> None:
    tensors = qkv(*lengths)
    out = attention(*tensors, backend=backend, **options)
    assert out.shape == tensors[0].shape
    assert not out.any()
    out.sum().backward()


def test_nothing_to_attend_with_is_refused() -> None:
    for shape in [(1, 0, 4, 8), (1, 2, 4, 0)]:
        with pytest.raises(ValueError, match="at least one head"):
            attention(*(torch.randn(shape) for _ in range(3)))


def test_meta_tensors_give_shapes() -> None:
    tensors = torch.randn(3, 1, 2, 600, 8, device="meta").unbind()
    assert attention(*tensors, window_size=16, backend="triton_attention").shape == (1, 2, 600, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"window_size": 4}, {"softcap": 3.0}])
def test_autocast_keeps_the_dtype_of_inputs_that_agree(dtype: torch.dtype, options: dict[str, object]) -> None:
    tensors = qkv(40, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(*tensors, **options)
    assert out.dtype == dtype
    torch.testing.assert_close(out, attention(*tensors, **options))


@pytest.mark.parametrize("window_size", [(-1, 0), (-1, 40), (40, -1)])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_one_sided_windows_keep_no_copies_of_the_keys(window_size: tuple[int, int], softcap: float) -> None:
    length, kept = 4096, []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    tensors = random_tensors(*[(1, 1, length, 8)] * 3, dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention(*tensors, window_size=window_size, softcap=softcap)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    floats = sum(storages.values()) / 4
    # Query, key, value, output and a few numbers a row.
    assert floats < 8 * length * 8


def test_explicit_backend_runs_or_says_what_can() -> None:
    tensors = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    with pytest.raises(UnknownBackend, match="Did you mean 'triton_attention'"):
        attention(*tensors, backend="triton_atention")
    with pytest.raises(UnsupportedProblem, match=r"softcap=5.0 \(not offered\).*Usable here: triton_attention"):
        attention(*tensors, backend="scaled_dot_product_attention", softcap=5.0)
    with pytest.raises(UnsupportedProblem, match="flash-attention is not installed"):
        attention(*tensors, backend="flash_attention")
