# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Compile graph-attention kernels for GPUs that are not there; cases from stdin, resources to stdout, as JSON."""

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

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.triton.graph_attention import launch
from anemoi.plugins.attention.models.triton.graph_attention.tiles import RUN_TIME

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
NUM_NODES = 64


def target(architecture: str) -> GPUTarget:
    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    return GPUTarget("hip", architecture, 64)


def prepare(kernel: str, dtype: str, num_heads: int, head_dim: int, num_attributes: int, degree: int) -> launch.Call:
    """Prepare a kernel for a graph in which every node has ``degree`` edges; 0 attributes: edges are given."""
    destination = torch.arange(NUM_NODES).repeat_interleave(degree)
    source = (destination + torch.arange(degree).repeat(NUM_NODES)) % NUM_NODES
    layout = GraphLayout.from_edge_index(torch.stack([source, destination]), NUM_NODES)
    graph = launch.Graph(*layout.tensors)
    options = launch.Options(layout.max_in_degree, layout.max_out_degree, 0.125)
    dtype = getattr(torch, dtype)
    nodes = torch.zeros(NUM_NODES, num_heads, head_dim, dtype=dtype)
    rows = torch.zeros(layout.num_edges, num_heads, head_dim, dtype=dtype)
    fp32 = torch.zeros(1)
    gradients = launch.Gradients(nodes, rows, fp32, fp32)
    edges = launch.Edges(rows)
    if num_attributes:
        weight = torch.zeros(num_heads * head_dim, num_attributes, dtype=dtype)
        edges = launch.Edges(torch.zeros(layout.num_edges, num_attributes, dtype=dtype), weight, weight[:, 0])
        gradients = launch.Gradients(nodes, None, fp32, fp32, (nodes, nodes), fp32)
    if kernel == "forward":
        return launch.forward_call(nodes, nodes, nodes, edges, nodes, graph, options)
    if kernel == "backward_destination":
        return launch.backward_destination_call(*[nodes] * 4, edges, gradients, graph, options)
    if kernel == "backward_source":
        return launch.backward_source_calls(nodes, nodes, gradients, nodes, nodes, graph, options)[0]
    return launch.backward_attributes_call(gradients, edges.rows, graph)


def signature(call: launch.Call) -> tuple[dict, dict, dict]:
    """Describe the arguments of a call as Triton's launcher would."""
    types, constants, hints = {}, dict(call.constants), {}
    for index, name in enumerate(call.kernel.arg_names):
        argument = call.arguments.get(name)
        if argument is None:
            types[name] = "constexpr"
            constants.setdefault(name, None)
        elif isinstance(argument, torch.Tensor):
            types[name] = f"*{TYPES[argument.dtype]}"
            if name != "end_ptr":
                hints[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(argument, float):
            types[name] = "fp32"
        else:
            types[name] = "i32"
            if name not in RUN_TIME and argument % 16 == 0:
                hints[(index,)] = [["tt.divisibility", 16]]
    return types, {(call.kernel.arg_names.index(name),): value for name, value in constants.items()}, hints


def compile_case(architecture: str, *case: object) -> dict[str, object]:
    call = prepare(*case)
    source = ASTSource(call.kernel, *signature(call))
    try:
        kernel = triton.compile(source, target=target(architecture), options=call.launch_options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    result = {"shared": kernel.metadata.shared}
    if "cubin" in kernel.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
        spilled = sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage.stdout))
        result["registers"] = int(re.search(r"REG:(\d+)", usage.stdout)[1])
    else:
        spilled = int(re.search(r"vgpr_spill_count:\s*(\d+)", kernel.asm["amdgcn"])[1])
    return result | {"spilled": spilled}


if __name__ == "__main__":
    print(json.dumps([compile_case(*case) for case in json.load(sys.stdin)]))
