# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What one attention layer asks of a backend, whether the layer is a live module or lies in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .attention_backends import TransformerBackend
from .attention_backends import backends
from .environment import TRANSFORMER
from .errors import UnsupportedProblem
from .problem import make_problem


@dataclass(frozen=True)
class LayerSpec:
    """Sizes and options of one attention layer.

    Parameters
    ----------
    path : str
        Name of the layer within the model.
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.
    num_heads, head_dim : int
        Heads, and channels of each.
    window_size : int, pair of int or None
        Keys on each side; None for all. Graph layers have none.
    softcap : float
        0 for none.
    alibi, rotary, qk_norm : bool
        Whether the layer has ALiBi slopes, rotary embeddings, norms of queries and keys.
    dropout_p : float
        Dropout of attention weights in training.
    """

    path: str
    kind: str
    num_heads: int
    head_dim: int
    window_size: Any = None
    softcap: float = 0.0
    alibi: bool = False
    rotary: bool = False
    qk_norm: bool = False
    dropout_p: float = 0.0

    def options(self) -> dict[str, Any]:
        """Return the options that are on, by the names that users know."""
        every = {
            "softcap": self.softcap,
            "alibi": self.alibi,
            "rotary": self.rotary,
            "qk_norm": self.qk_norm,
            "dropout": self.dropout_p,
        }
        return {name: value for name, value in every.items() if value}


def transformer_spec(path: str, get: Callable[[str, Any], Any]) -> LayerSpec:
    """Describe a self- or cross-attention layer of the host.

    Parameters
    ----------
    path : str
        Name of the layer within the model.
    get : callable
        Returns an attribute of the layer, or the second argument where it has none: releases of the host differ.
    """
    heads = get("num_heads", 0)
    channels = get("attn_channels", None) or get("embed_dim", None) or 0
    return LayerSpec(
        path,
        TRANSFORMER,
        heads,
        get("head_dim", None) or channels // max(heads, 1),
        window_size=get("window_size", None),
        softcap=get("softcap", None) or 0.0,
        alibi=bool(get("use_alibi_slopes", False)) or get("alibi_slopes", None) is not None,
        rotary=bool(get("use_rotary_embeddings", False)),
        qk_norm=bool(get("qk_norm", False)),
        dropout_p=get("dropout_p", None) or 0.0,
    )


def graph_spec(path: str, kind: str, get: Callable[[str, Any], Any]) -> LayerSpec:
    """Describe a graph-transformer block of the host; see :func:`transformer_spec`."""
    return LayerSpec(
        path,
        kind,
        get("num_heads", 0),
        get("out_channels_conv", 0),
        qk_norm=bool(get("qk_norm", False)),
    )


def refusals(
    spec: LayerSpec,
    name: str,
    device_type: str | None = None,
    *,
    training: bool = False,
    dtype: torch.dtype | None = None,
) -> list[str]:
    """List why a backend cannot run a layer; empty if it can.

    Parameters
    ----------
    spec : LayerSpec
        The layer.
    name : str
        Canonical name of a backend of the layer's kind.
    device_type : str or None
        ``"cpu"`` or ``"cuda"``: where it is to run. None asks about the machine as a whole.
    training : bool
        Whether dropout counts.
    dtype : torch.dtype or None
        What the layer computes in; None if it is not known, and not checked.
    """
    available, reason = backends(spec.kind)[name].available(device_type)
    if not available:
        return [reason]
    return option_refusals(spec, name, device_type, training=training, dtype=dtype)


def option_refusals(
    spec: LayerSpec,
    name: str,
    device_type: str | None = None,
    *,
    training: bool = False,
    dtype: torch.dtype | None = None,
) -> list[str]:
    """List what a backend does not offer of the options of a layer, be it available or not; see :func:`refusals`."""
    backend = backends(spec.kind)[name]
    if not isinstance(backend, TransformerBackend):
        return []
    device = "cuda" if device_type != "cpu" and torch.cuda.is_available() else "cpu"
    heads = max(spec.num_heads, 1)
    # One row is enough: what a backend refuses is a matter of sizes and options, not of length.
    row = torch.empty(1, heads, 1, max(spec.head_dim, 1), dtype=dtype or backend.dtypes[0], device=device)
    problem = make_problem(
        row,
        row,
        row,
        softcap=spec.softcap,
        alibi_slopes=torch.ones(heads, device=device) if spec.alibi else None,
        dropout_p=spec.dropout_p if training else 0.0,
    )
    # Whether it can run on this device is another question, and answered elsewhere.
    elsewhere = backend.available(device)
    refused = [why for why in backend.not_supported_reasons(problem) if elsewhere[0] or why != elsewhere[1]]
    if spec.rotary and spec.head_dim % 2:
        refused.append(f"head_dim={spec.head_dim} (rotary embeddings need an even one)")
    return refused


def usable_backends(
    spec: LayerSpec, device_type: str | None = None, *, training: bool = False, dtype: torch.dtype | None = None
) -> list[str]:
    """Return the names of the backends that can run a layer; see :func:`refusals`."""
    return [
        name for name in backends(spec.kind) if not refusals(spec, name, device_type, training=training, dtype=dtype)
    ]


def require_options(
    wanted: Iterable[tuple[LayerSpec, str]],
    device_type: str | None = None,
    *,
    training: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Check that backends offer the options of the layers that they are for.

    Parameters
    ----------
    wanted : iterable of LayerSpec and str
        Each layer with its backend. One that only the host knows is not checked.
    device_type, training, dtype
        See :func:`refusals`.

    Raises
    ------
    UnsupportedProblem
        Naming the first layer, its option, and the backends that offer it.
    """
    refused = [
        (spec, name, reasons)
        for spec, name in wanted
        if name in backends(spec.kind)
        and (reasons := option_refusals(spec, name, device_type, training=training, dtype=dtype))
    ]
    if refused:
        spec, name, reasons = refused[0]
        others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        usable = usable_backends(spec, device_type, training=training, dtype=dtype)
        raise UnsupportedProblem(
            f"Backend '{name}' cannot run the layer '{spec.path}'{others}: {', '.join(reasons)}. "
            f"Usable for it here: {', '.join(usable) or 'none'}. "
            f"Choose one of these for the {spec.kind.replace('_', '-')} layers."
        )
