# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Compile configurations for GPUs that are not there; read cases from stdin as JSON, write resources to stdout.

A case is architecture, direction, dtype, head_dim, windowed, and the number of the tuner's candidate, if it is not the
shipped configuration of the portable kernel; the architecture ``sm_90/explicit`` means the kernels with explicit
asynchrony.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from anemoi.plugins.attention.models.triton.attention import calls
from anemoi.plugins.attention.models.triton.attention import candidates
from anemoi.plugins.attention.models.triton.attention import configurations
from anemoi.plugins.attention.models.triton.attention import launch
from anemoi.plugins.attention.models.triton.attention.forward import RUN_TIME

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def target(architecture: str) -> GPUTarget:
    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm_").removesuffix("/explicit")), 32)
    return GPUTarget("hip", architecture, 64)


def prepare(
    architecture: str,
    direction: str,
    dtype: str,
    head_dim: int,
    windowed: bool,
    candidate: int | None = None,
    num_rows: int = 512,
) -> calls.Call:
    """Build a call on zeros in the layout of a linear layer's rows."""
    rows = torch.zeros(1, num_rows, 16, head_dim, dtype=getattr(torch, dtype)).transpose(1, 2)
    lse = calls.empty_lse(rows)
    options = calls.Options(left=16 if windowed else -1, right=16 if windowed else -1, softmax_scale=0.125)
    architecture, _, explicit = architecture.partition("/")
    key = configurations.Key(architecture, direction, rows.dtype, head_dim, windowed)
    found = configurations.explicit_configuration if explicit else configurations.configuration
    config = found(architecture, direction, rows.dtype, head_dim, windowed=windowed)
    if candidate is not None:
        config = candidates.candidates(key)[candidate]
    arguments = {"forward": [*[rows] * 4, lse], "backward_query": [*[rows] * 5, lse, lse, rows]}
    arguments["backward_key_value"] = [*[rows] * 4, lse, lse, rows, rows]
    if config.explicit:
        return getattr(launch.hopper, f"{direction}_call")(*arguments[direction], options, config)
    with configurations.using({key: config}):
        return getattr(launch, f"{direction}_call")(*arguments[direction], options, architecture)


def signature(call: calls.Call) -> tuple[dict, dict, dict]:
    """Describe the arguments of a call as Triton's launcher would."""
    types, constants, hints = {}, dict(call.constants), {}
    for index, name in enumerate(call.kernel.arg_names):
        argument = call.arguments.get(name)
        if argument is None:
            types[name] = "constexpr"
            constants.setdefault(name, None)
        elif isinstance(argument, torch.Tensor):
            types[name] = f"*{TYPES[argument.dtype]}"
            hints[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(argument, float):
            types[name] = "fp32"
        elif isinstance(argument, int):
            types[name] = "i32"
            if name not in RUN_TIME and argument % 16 == 0:
                hints[(index,)] = [["tt.divisibility", 16]]
        else:
            block = ",".join(map(str, argument.block_shape))
            layout = f",{argument.layout!r}" if hasattr(argument, "layout") else ""
            types[name] = f"tensordesc<{TYPES[argument.base.dtype]}[{block}]{layout}>"
    return types, {(call.kernel.arg_names.index(name),): value for name, value in constants.items()}, hints


def compile_case(architecture: str, *case: object) -> dict[str, object]:
    call = prepare(architecture, *case)
    source = (GluonASTSource if call.configuration.explicit else ASTSource)(call.kernel, *signature(call))
    try:
        kernel = triton.compile(source, target=target(architecture), options=call.launch_options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if "cubin" in kernel.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
        spilled = sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage.stdout))
    else:
        spilled = int(re.search(r"vgpr_spill_count:\s*(\d+)", kernel.asm["amdgcn"])[1])
    return {"spilled": spilled, "shared": kernel.metadata.shared}


if __name__ == "__main__":
    print(json.dumps([compile_case(*case) for case in json.load(sys.stdin)]))
