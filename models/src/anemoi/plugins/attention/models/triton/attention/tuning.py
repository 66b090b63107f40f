# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The opt-in tuner: verify a few configurations on this GPU, time those that are right, keep the choice in a file.

Nothing tunes by itself. One process tunes once; every process of a job then loads the same file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from os import PathLike

import torch
import triton
from torch import Tensor

from ...errors import BackendUnavailable
from ...problem import WindowSize
from ...problem import make_problem
from ...problem import normalise_window
from ...reference import reference_attention
from . import calls
from . import configuration_file
from . import configurations
from . import launch
from .candidates import candidates
from .configurations import Configuration
from .configurations import Key

LOGGER = logging.getLogger(__name__)

# The largest relative L2 error of a right result; one tf32 product in place of three gives 3e-4.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}
CHECK_LENGTH = 1000
_CHECK_HEADS = 2
# Runs of the same kernel differ by about this much; the shipped configuration stays unless another one is faster.
_WORTH = 0.98

WRITTEN = {"forward": ("out",), "backward_query": ("d_query",), "backward_key_value": ("d_key", "d_value")}
"""What each kernel writes."""


class Trial:
    """Tensors of one attention, on which its three kernels can run with any configuration.

    Parameters
    ----------
    query, key, value : Tensor
        ``[B, H, N, D]``, as for ``fused_attention``.
    window_size : int, pair of int or None
        As for ``attention``.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, window_size: WindowSize) -> None:
        self.device = query.device
        self.window_size = normalise_window(window_size)
        self.architecture = configurations.architecture_of(query.device)
        query, key, value = (calls.readable(tensor.detach()) for tensor in (query, key, value))
        self.tensors = {"query": query, "key": key, "value": value, "d_out": torch.randn_like(query)}
        for name, like in (("out", query), ("d_query", query), ("d_key", key), ("d_value", value)):
            self.tensors[name] = calls.empty_like(like)
        self._options = calls.Options(*self.window_size, query.shape[3] ** -0.5)
        self._numbers = calls.empty_lse(query), calls.empty_lse(query)

    def key(self, direction: str) -> Key:
        """Return what the configuration of a direction is stored under."""
        query = self.tensors["query"]
        bucket = configurations.head_dim_block(query.shape[3])
        return Key(self.architecture, direction, query.dtype, bucket, self._options.windowed)

    def call(self, direction: str, config: Configuration | None = None) -> calls.Call:
        """Prepare one kernel, as shipped or with another configuration.

        Raises
        ------
        ValueError
            If the configuration cannot run with these tensors or this release of Triton.
        """
        tensors = self.tensors
        query, key, value, d_out, out = (tensors[name] for name in ("query", "key", "value", "d_out", "out"))
        lse, delta = self._numbers
        kernels: dict[str, Callable[..., calls.Call]] = {
            "forward": partial(launch.forward_call, query, key, value, out, lse),
            "backward_query": partial(
                launch.backward_query_call, d_out, query, key, value, out, lse, delta, tensors["d_query"]
            ),
            "backward_key_value": partial(
                launch.backward_key_value_call,
                d_out,
                query,
                key,
                value,
                lse,
                delta,
                tensors["d_key"],
                tensors["d_value"],
            ),
        }
        with configurations.using({} if config is None else {self.key(direction): config}):
            call = kernels[direction](self._options, self.architecture)
        if config is not None and call.configuration != config:
            raise ValueError(f"{config} serves neither these tensors nor this release of Triton. Take another one.")
        return call

    def run_before(self, direction: str) -> None:
        """Run, as shipped, the kernels whose results this direction reads."""
        for before in configurations.DIRECTIONS[: configurations.DIRECTIONS.index(direction)]:
            self.call(before).launch(self.device)

    def expected(self) -> dict[str, Tensor]:
        """Return what the kernels should write, from the oracle in float64."""
        query, key, value = (self.tensors[name].double().requires_grad_() for name in ("query", "key", "value"))
        out = reference_attention(make_problem(query, key, value, window_size=self.window_size))
        gradients = torch.autograd.grad(out, (query, key, value), self.tensors["d_out"].double())
        return dict(zip(("out", "d_query", "d_key", "d_value"), (out.detach(), *gradients), strict=True))

    def error(self, direction: str, config: Configuration, expected: dict[str, Tensor]) -> float:
        """Run one kernel and return the largest relative L2 error of what it writes."""
        self.run_before(direction)
        for name in WRITTEN[direction]:
            self.tensors[name].fill_(torch.nan)
        self.call(direction, config).launch(self.device)
        # With a window of 0, two of the gradients are zero.
        return max(
            ((self.tensors[name] - expected[name]).norm() / expected[name].norm().clamp(min=1e-6)).item()
            for name in WRITTEN[direction]
        )


def tune(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window_size: WindowSize,
    path: str | PathLike[str],
    *,
    overwrite: bool = False,
) -> dict[Key, Configuration]:
    """Choose configurations for attentions like this one on this GPU, and write them to a JSON file.

    At most 8 candidates a kernel: each is verified against float64 on the first 1000 rows, then timed on the tensors
    themselves. The shipped configuration stays unless another is faster by more than 2 %. Takes about a minute, most of
    it the compiler's.

    Parameters
    ----------
    query, key, value : Tensor
        ``[B, H, N, D]`` on a GPU, fp16, bf16 or fp32.
    window_size : int, pair of int or None
        As for ``attention``.
    path : path
        The JSON file, for ``load_configurations``.
    overwrite : bool
        Whether an existing file may be replaced.

    Returns
    -------
    dict of Key to Configuration
        What was written.

    Raises
    ------
    BackendUnavailable
        If the tensors are not on a GPU.
    FileExistsError
        If the file exists and ``overwrite`` is not set; nothing is measured then.
    """
    configuration_file.check_target(path, overwrite=overwrite)
    require_gpu(query.device)
    entries = choose(query, key, value, window_size)
    configuration_file.write(path, entries, overwrite=overwrite, **provenance(query.device))
    return entries


def require_gpu(device: torch.device) -> None:
    """Raise BackendUnavailable unless the kernels can be timed on a device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        raise BackendUnavailable(
            f"The attention kernels cannot be tuned here: device={device.type}, and a GPU is "
            f"{'present' if torch.cuda.is_available() else 'not found'}. Allowed: a CUDA or ROCm device. Run the tuner "
            "on the machine that the file is for; without one, the shipped configurations serve."
        )


def provenance(device: torch.device) -> dict[str, str]:
    """Say where something was measured."""
    return {
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window_size: WindowSize,
    measure: Callable[[Callable[[], None]], float] | None = None,
) -> dict[Key, Configuration]:
    """Return the fastest right configuration of each kernel. See ``tune``.

    ``measure`` returns the time of a function; by default the median of device events, in milliseconds.
    """
    measure = measure or partial(triton.testing.do_bench, warmup=10, rep=60, return_mode="median")
    trial = Trial(query, key, value, window_size)
    small_query, small_key, small_value = (x[:1, :_CHECK_HEADS, :CHECK_LENGTH] for x in (query, key, value))
    small = Trial(small_query, small_key, small_value, window_size)
    expected = small.expected()
    chosen: dict[Key, Configuration] = {}
    for direction in configurations.DIRECTIONS:
        trial.run_before(direction)
        times: dict[Configuration, float] = {}
        for config in candidates(trial.key(direction)):
            reason = _reason_against(small, direction, config, expected)
            if reason is None:
                times[config] = measure(partial(trial.call(direction, config).launch, trial.device))
            LOGGER.info("%s %s: %s", direction, config, reason or f"{times[config]:.4f} ms")
        chosen |= {trial.key(direction): _fastest(times)} if times else {}
    return chosen


def _reason_against(trial: Trial, direction: str, config: Configuration, expected: dict[str, Tensor]) -> str | None:
    try:
        error = trial.error(direction, config, expected)
    except Exception as failure:
        # Whatever the compiler says of a candidate that does not fit this GPU.
        return f"skipped, {type(failure).__name__}: {str(failure)[:120]}"
    # Written so that NaN is refused.
    return None if error <= TOLERANCE[trial.tensors["query"].dtype] else f"skipped, wrong by {error:.1e}"


def _fastest(times: dict[Configuration, float]) -> Configuration:
    first, *_ = times
    best = min(times, key=lambda config: times[config])
    return best if times[best] < _WORTH * times[first] else first
