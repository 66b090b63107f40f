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

from anemoi.plugins.attention.models import BackendUnavailable
from anemoi.plugins.attention.models import UnknownBackend
from anemoi.plugins.attention.models.attention_backends import backends
from anemoi.plugins.attention.models.attention_backends import canonical_name
from anemoi.plugins.attention.models.attention_backends import names
from anemoi.plugins.attention.models.attention_backends import require_available
from anemoi.plugins.attention.models.attention_backends import transformer_backends
from anemoi.plugins.attention.models.attention_backends.transformer import flash_attention
from anemoi.plugins.attention.models.attention_backends.transformer import triton_attention
from anemoi.plugins.attention.models.problem import make_problem


def test_names() -> None:
    assert list(backends("transformer")) == ["triton_attention", "flash_attention", "scaled_dot_product_attention"]
    assert set(backends("graph_transformer")) == {"pyg", "triton"}


@pytest.mark.parametrize(
    ("name", "expected"), [("triton", "triton_attention"), ("sdpa", "scaled_dot_product_attention")]
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
        ("pyg", "Allowed: triton_attention, flash_attention, scaled_dot_product_attention"),
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


def test_triton_attention_on_a_gpu_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "_TRITON_IS_INSTALLED", False)
    assert transformer_backends()["triton_attention"].available("cuda")[0] is False
    assert transformer_backends()["triton_attention"].available("cpu")[0] is True


def test_triton_is_not_imported_on_a_cpu() -> None:
    program = (
        "import sys, torch; from anemoi.plugins.attention.models import attention; "
        "attention(*torch.randn(3, 1, 2, 8, 16).unbind(), window_size=2, backend='triton_attention'); "
        "assert 'triton' not in sys.modules, 'triton was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


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
