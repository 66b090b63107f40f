# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The form in which a layer goes into a checkpoint that is given another backend."""

from __future__ import annotations

from typing import Any

from ..attention_backends import transformer_backends
from ..environment import TRANSFORMER
from ..errors import BackendUnavailable
from ..errors import UnsupportedProblem
from . import graph_transformer_block
from . import transformer_attention
from .attention_module import AttentionModule

_SDPA = "scaled_dot_product_attention"
_FLASH = "flash_attention"


def assign_saved_form(path: str, kind: str, layer: Any, name: str) -> None:
    """Give a layer what the checkpoint is to hold for a backend; it need not run on this machine.

    The stock backends become what anemoi-models itself saves for them.

    Parameters
    ----------
    path : str
        Name of the layer within the model, for messages.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.
    layer : Module
        The host's layer; its weights are not touched.
    name : str
        Canonical name of the backend.

    Raises
    ------
    UnsupportedProblem
        If the stock module would leave out what the layer does.
    BackendUnavailable
        If the checkpoint would have to name code that is not installed here.
    """
    if kind == TRANSFORMER:
        _assign_transformer(path, layer, name)
    else:
        graph_transformer_block.assign_backend(layer, name, _stock_kernel() if name == "triton" else None)
    if hasattr(layer, "_attention_backend_applied"):
        # The host's mark for "the environment has been heeded", which is another one where the checkpoint is run.
        layer._attention_backend_applied = False


def _assign_transformer(path: str, layer: Any, name: str) -> None:
    rotary = transformer_attention.rotates(layer)
    if rotary and name == _SDPA:
        raise UnsupportedProblem(
            f"Backend '{_SDPA}' cannot be saved for the layer '{path}': it has rotary embeddings, which the module of "
            "anemoi-models leaves out. Allowed: triton_attention, flash_attention. Convert to one of these, or choose "
            "the backend when you run the checkpoint: there, rotary embeddings are kept."
        )
    # The stock wrapper of flash-attention cannot be built with rotary embeddings.
    layer.attention = _stock_flash() if name == _FLASH and not rotary else AttentionModule(name, rotary=rotary)
    layer.attention_implementation = name


def _stock_kernel() -> Any:
    # Not from the module of the blocks, which has it only where there is a GPU.
    try:
        from anemoi.models.triton import gt
    except (ImportError, ValueError) as error:
        raise _not_installed("triton", error) from error
    # Its name until release 0.17.
    older: Any = getattr(gt, "GraphTransformerFunction", None)
    return older.apply if older is not None else gt.graph_transformer_attention_conv


def _stock_flash() -> Any:
    from anemoi.models.layers.attention import FlashAttentionWrapper

    try:
        return FlashAttentionWrapper()
    except ImportError as error:
        raise _not_installed(_FLASH, transformer_backends()[_FLASH].available()[1]) from error


def _not_installed(name: str, error: object) -> BackendUnavailable:
    return BackendUnavailable(
        f"A checkpoint with backend '{name}' names the code behind it, which cannot be imported here: {error}. "
        "Allowed: backends whose packages are installed; no GPU is needed. Install the package, or convert on a "
        "machine that has it."
    )
