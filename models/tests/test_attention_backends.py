# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Names, availability and refusals of the backends."""

import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models import attention
from anemoi.plugins.attention.models.attention_backends import backends
from anemoi.plugins.attention.models.attention_backends import canonical_name
from anemoi.plugins.attention.models.attention_backends import names
from anemoi.plugins.attention.models.attention_backends import require_available
from anemoi.plugins.attention.models.attention_backends import transformer_backends
from anemoi.plugins.attention.models.attention_backends.transformer import flash_attention
from anemoi.plugins.attention.models.attention_backends.transformer import flex_attention
from anemoi.plugins.attention.models.problem import make_problem
from anemoi.plugins.attention.models.reference import reference_attention
from anemoi.plugins.attention.models.triton import requirement


def test_names() -> None:
    assert list(backends("transformer")) == [
        "triton_attention",
        "flash_attention",
        "scaled_dot_product_attention",
        "flex_attention",
    ]
    assert {"pyg", "triton"} <= set(backends("graph_transformer"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("triton", "triton_attention"), ("sdpa", "scaled_dot_product_attention"), ("flex", "flex_attention")],
)
def test_c49_aliases(name: str, expected: str) -> None:
    assert canonical_name(name, "transformer", "key") == expected


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("trtion", "Did you mean 'triton'"),
        ("TRITON_ATTENTION", "Did you mean 'triton_attention'"),
        ("", "Set model.processor.attention_implementation"),
        (None, "Set model.processor.attention_implementation"),
        ("pyg", "Allowed: triton_attention, flash_attention, scaled_dot_product_attention, flex_attention"),
    ],
)
def test_c49_wrong_names_get_the_list_and_the_closest(name: object, closest: str) -> None:
    with pytest.raises(UnknownBackend) as error:
        canonical_name(name, "transformer", "model.processor.attention_implementation")
    message = str(error.value)
    assert message.startswith(f"model.processor.attention_implementation names no attention backend: {name!r}.")
    assert closest in message
    assert all(allowed in message for allowed in names("transformer"))


def test_unavailable_backend_says_why_and_what_can() -> None:
    with pytest.raises(BackendUnavailable, match=r"device=cpu \(needs cuda\).*Usable here: pyg"):
        require_available("triton", "graph_transformer", "cpu")
    require_available("triton_attention", "transformer", "cpu")


@pytest.mark.parametrize("kind", ["transformer", "graph_transformer"])
def test_a35_a36_triton_attention_on_a_gpu_needs_a_triton_that_serves(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backends(kind)["triton_attention"]
    assert backend.available("cuda") == (False, "no CUDA device is visible (needs a GPU)")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backend.available("cuda") == (True, "Triton kernels")
    monkeypatch.setattr(requirement, "triton_problem", lambda: "triton=2.10.0 (at least 3.3)")
    assert backend.available("cuda") == (False, "triton=2.10.0 (at least 3.3)")
    assert backend.available("cpu")[0] is True


def test_triton_is_not_imported_on_a_cpu() -> None:
    program = (
        "import sys, torch; from anemoi.plugins.attention.models import attention; "
        "attention(*torch.randn(3, 1, 2, 8, 16).unbind(), window_size=2, backend='triton_attention'); "
        "assert 'triton' not in sys.modules, 'triton was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- flex_attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(300, 300), (256, 512), (130, 700), (700, 130), (128, 128), (1, 400)])
@pytest.mark.parametrize("window_size", [(0, 0), (40, 40), (130, 5), (-1, 0), (300, -1), (2000, 2000)])
def test_flex_masks_are_those_of_torch(lengths: tuple[int, int], window_size: tuple[int, int]) -> None:
    ours = flex_attention.window_mask(*lengths, window_size, "cpu")
    theirs = create_block_mask(ours.mask_mod, None, None, *lengths, device="cpu")
    assert ours.shape == theirs.shape
    # Each row of indices counts up to its number; what stands behind does not matter.
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts, indices = (getattr(ours, f"{kind}_{what}") for what in ("num_blocks", "indices"))
        assert torch.equal(counts, getattr(theirs, f"{kind}_num_blocks")), kind
        used = torch.arange(indices.shape[-1]) < counts[..., None]
        assert torch.equal(indices[used], getattr(theirs, f"{kind}_indices")[used]), kind


def test_flex_masks_are_made_once_and_their_number_is_bounded() -> None:
    flex_attention.window_mask.cache_clear()
    masks = [flex_attention.window_mask(length, 64, (8, 8), "cpu") for length in range(1, 100)]
    info = flex_attention.window_mask.cache_info()
    assert info.misses == 99
    assert info.currsize == info.maxsize < 99
    assert flex_attention.window_mask(99, 64, (8, 8), "cpu") is masks[-1]
    assert flex_attention.window_mask(99, 64, (8, 0), "cpu") is not masks[-1]


def test_flex_says_what_it_cannot() -> None:
    backend = transformer_backends()["flex_attention"]
    assert backend.available("cpu") == (True, "unfused on a CPU")
    assert backend.available("mps") == (False, "device=mps (needs cuda or cpu)")
    problem = make_problem(*torch.randn(3, 1, 2, 8, 8).unbind(), dropout_p=0.1)
    assert backend.not_supported_reasons(problem) == ["dropout_p=0.1 (not offered)"]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"alibi_slopes": torch.tensor([0.1, 0.2])}])
@pytest.mark.parametrize("window_size", [None, 100, (-1, 0)])
@pytest.mark.parametrize("lengths", [(1000, 1000), (300, 900)])
def test_flex_on_a_gpu_matches_the_reference(
    options: dict[str, object], window_size: object, lengths: tuple[int, int]
) -> None:
    torch.manual_seed(1996)
    query, key, value = (
        torch.randn(2, 2, n, 32, device="cuda", requires_grad=True) for n in (lengths[0], *lengths[1:] * 2)
    )
    out = attention(query, key, value, window_size=window_size, backend="flex_attention", **options)
    doubles = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    expected = reference_attention(make_problem(*doubles, window_size=window_size, **options))
    gradient = torch.randn_like(out)
    got = (out, *torch.autograd.grad(out, (query, key, value), gradient))
    wanted = (expected, *torch.autograd.grad(expected, doubles, gradient.double()))
    for ours, theirs in zip(got, wanted, strict=True):
        # fp32 products may be computed in tf32.
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=2e-2)


# --- flash-attention, with stand-ins for its three generations -------------------------------------------------------


@pytest.fixture
def install_flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, object]]]:
    """Return a function that puts a stand-in in place of a generation and gives what it was called with."""
    called: dict[str, object] = {}

    def install(module_name: str, returns_tuple: bool) -> dict[str, object]:
        def flash_attn_func(query, key, value, **options):
            called.update(options, shape=tuple(query.shape))
            return (value + 1.0, None) if returns_tuple else value + 1.0

        module = ModuleType(module_name)
        module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
        for parent in ("flash_attn", module_name):
            monkeypatch.setitem(sys.modules, parent, module if parent == module_name else ModuleType(parent))
        return called

    flash_attention._installed.cache_clear()
    yield install
    flash_attention._installed.cache_clear()


@pytest.mark.parametrize(
    ("module_name", "returns_tuple", "window", "version"),
    [
        ("flash_attn.cute", True, (4, None), "v4"),
        ("flash_attn_interface", True, (4, -1), "v3"),
        ("flash_attn", False, (4, -1), "v2"),
    ],
)
def test_flash_generations(
    install_flash: Callable[..., dict[str, object]],
    module_name: str,
    returns_tuple: bool,
    window: tuple[int, int | None],
    version: str,
) -> None:
    called = install_flash(module_name, returns_tuple)
    backend = transformer_backends()["flash_attention"]
    tensors = torch.randn(3, 1, 2, 8, 16, dtype=torch.float16).unbind()
    out = backend.run(make_problem(*tensors, window_size=(4, None), softmax_scale=0.5))
    torch.testing.assert_close(out, tensors[2] + 1.0)
    assert called["shape"] == (1, 8, 2, 16)
    assert called["window_size"] == window
    assert called["softmax_scale"] == 0.5
    # It is installed, yet this is a CPU.
    assert backend.available("cpu") == (False, "device=cpu (needs cuda)")
    refused = backend.not_supported_reasons(make_problem(*tensors, softcap=1.0, dropout_p=0.1))
    assert (f"softcap (not in flash-attention {version})" in refused) is (version == "v4")
    assert (f"dropout_p (not in flash-attention {version})" in refused) is (version != "v2")
