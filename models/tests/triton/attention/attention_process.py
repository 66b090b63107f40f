# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What the tests run in a process of its own: ``python attention_process.py TASK DEVICE``, a line of JSON on stdout."""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

# The folder of this file is on the path of a script, policy.py is not.
sys.path.insert(0, str(Path(__file__).parents[2]))

from kernel_checks import NAMES
from kernel_checks import draw
from kernel_checks import with_gradients


def run(device: str, length: int = 40, window: int = 9) -> tuple[torch.Tensor, ...]:
    """Run forward and backward once."""
    from anemoi.plugins.attention.models.triton.attention import fused_attention

    tensors = draw(1, 2, length, 64, device=torch.device(device), dtype=torch.float16)
    return with_gradients(lambda *x: fused_attention(*x, window_size=(window, window)), *tensors)


def digest(device: str) -> dict[str, str]:
    """Return the configurations that are used, and a hash of the bits of each result (A29)."""
    from anemoi.plugins.attention.models.triton.attention import configurations

    architecture = configurations.architecture_of(torch.device(device))
    used = [configurations.shipped_configuration(architecture, *key[1:]) for key in configurations.shipped()]
    hashes = {
        name: hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()
        for name, tensor in zip(NAMES, run(device), strict=True)
    }
    return {"configurations": str(used), **hashes}


def first_call(device: str) -> dict[str, float]:
    """Return the seconds of the first forward and backward of a process, compilation included."""
    start = time.monotonic()
    run(device, length=1000, window=200)
    torch.cuda.synchronize()
    return {"seconds": time.monotonic() - start}


def capture(device: str) -> dict[str, object]:
    """Capture forward and backward in a CUDA graph before the kernels were ever loaded, and replay (A40)."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            got = run_captured(device)
    except RuntimeError as error:
        return {"error": str(error)}
    for result in got:
        result.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    # Outside the graph, by the kernels that are loaded by now.
    return {"equal": all(torch.equal(a, b) for a, b in zip(got, run_captured(device), strict=True))}


def run_captured(device: str) -> tuple[torch.Tensor, ...]:
    """Run forward and backward on tensors that need no copy from the host."""
    from anemoi.plugins.attention.models.triton.attention import fused_attention

    ramp = torch.arange(200 * 64, device=device, dtype=torch.float32).reshape(1, 1, 200, 64)
    tensors = [torch.sin(ramp * factor).to(torch.bfloat16) for factor in (1.0, 1.3, 1.7, 2.1)]
    return with_gradients(fused_attention, *tensors)


def race(device: str) -> dict[str, list[int]]:
    """Let eight processes begin with one cache folder at once; return their exit codes (A32)."""
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            # Not through the interpreter's exit, which is the parent's.
            os._exit(_race_child(device))
        children.append(child)
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]}


def _race_child(device: str) -> int:
    try:
        if device == "cuda":
            return int(not all(result.isfinite().all() for result in run(device)))
        from compile_configurations import compile_case

        return int("error" in compile_case("sm_80", "forward", "float16", 32, True))
    except Exception as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    if sys.argv[1] == "race" and sys.argv[2] == "cpu":
        # Imported once, before the fork.
        import compile_configurations  # noqa: F401
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
