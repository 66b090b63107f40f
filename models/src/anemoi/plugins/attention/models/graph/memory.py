# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What follows from the edges of a graph, kept as long as the memory that holds these edges."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Of one graph: its chunks and batch sizes. Older results are dropped.
_MAX_RESULTS = 256


class EdgeMemory:
    """Results computed from ``edge_index`` tensors.

    Known edges are recognised by their memory, without looking at them: no work on the device, no waiting. A result is
    forgotten when that memory is freed, so it may not hold the memory itself. Views of the same part share a result.
    An in-place change of the edges, or of a result, is noticed by torch's version counters; one that escapes the
    counters (``.data``, NumPy) is not. Tensors made in inference mode have no counter: nothing is kept for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Storages hash by identity.
        self._results: weakref.WeakKeyDictionary[Any, dict[tuple, tuple[tuple, Any]]] = weakref.WeakKeyDictionary()

    def get(self, edge_index: Tensor, what: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of ``compute``, called when these edges, and this question, are new.

        Parameters
        ----------
        edge_index : Tensor
            The edges.
        what : hashable
            Which result, with all that it depends on besides the edges.
        compute : callable
            Makes the result: a tensor, a tuple of tensors, or something without a version. It runs without gradients
            and outside inference mode, since its tensors may later be saved for a backward pass.
        """
        if edge_index.is_inference():
            return _compute(compute)
        storage = edge_index.untyped_storage()
        part = (edge_index.storage_offset(), edge_index.shape, edge_index.stride(), edge_index.dtype, what)
        with self._lock:
            versions, result = self._results.get(storage, {}).get(part, ((), None))
        if versions and versions == _versions(edge_index, result):
            return result
        result = _compute(compute)
        with self._lock:
            results = self._results.setdefault(storage, {})
            results.pop(part, None)
            for outdated in [key for key, (seen, _) in results.items() if seen[0] != edge_index._version]:
                del results[outdated]
            while len(results) >= _MAX_RESULTS:
                del results[next(iter(results))]
            results[part] = (_versions(edge_index, result), result)
        return result

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._results.values()))


def _compute(compute: Callable[[], T]) -> T:
    with torch.inference_mode(False), torch.no_grad():
        return compute()


def _versions(edge_index: Tensor, result: Any) -> tuple[int, ...]:
    tensors = result if isinstance(result, tuple) else (result,)
    return (edge_index._version, *(tensor._version for tensor in tensors if isinstance(tensor, Tensor)))
