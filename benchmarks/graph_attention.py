# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Check graph attention on a GPU, then time it and candidate configurations of its kernels.

Graphs have the size and locality of Anemoi's encoder, processor and decoder. A candidate is written
``<nodes>x<heads>x<block_e>w<warps>s<stages>``, with ``g<groups>`` for tiles per program and ``r<registers>`` to limit
registers; it is timed only if its results are right. Example::

    python benchmarks/graph_attention.py --output graph_attention.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from scipy.spatial import cKDTree
from torch import Tensor

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised
from anemoi.plugins.attention.models.graph.functional import TORCH
from anemoi.plugins.attention.models.graph.functional import TRITON
from anemoi.plugins.attention.models.triton.graph_attention import configurations
from anemoi.plugins.attention.models.triton.graph_attention import launch

NUM_HEADS, HEAD_DIM, NUM_ATTRIBUTES = 16, 64, 11
ATOL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}
PLAIN = ("query", "key", "value", "edges")
FACTORISED = ("query", "key", "value", "edge_attr", "weight", "bias")

CANDIDATES = {
    ("forward", False): "16x1x4w4s1 16x1x2w4s1 16x1x8w4s1 16x1x4w4s2 16x1x4w4s3 16x1x2w4s3 8x1x4w2s1 32x1x4w8s1 "
    "1x16x4w4s1 4x4x4w4s1 16x1x4w4s1g2 16x1x4w4s1g4 16x1x4w4s1g8 16x1x4w4s1g16",
    ("forward", True): "16x1x4w4s1 16x1x2w4s1 16x1x8w4s1 32x1x4w8s1 32x1x2w8s1 16x1x4w4s1g1 16x1x4w4s1g2 16x1x4w4s1g8 "
    "16x1x4w4s1g16",
    ("backward_destination", False): "16x1x4w4s1 16x1x2w4s1 16x1x4w4s2 16x1x4w4s2r128 16x1x2w4s2 16x1x4w4s3 32x1x2w8s1 "
    "8x1x4w2s1 1x16x4w4s1 4x4x4w4s1 16x1x4w4s1g1 16x1x4w4s1g8",
    ("backward_destination", True): "16x1x4w4s1 16x1x2w4s1 16x1x4w4s1r128 16x1x2w4s1r128 32x1x4w8s1 32x1x2w8s1 "
    "16x1x4w4s1g4 16x1x4w4s1g16 16x1x4w4s1g64",
    (
        "backward_source",
        False,
    ): "16x1x4w4s1 16x1x2w4s1 16x1x8w4s1 16x1x4w4s2 16x1x4w4s3 8x1x4w2s1 32x1x4w8s1 1x16x4w4s1 "
    "4x4x4w4s1 16x1x4w4s1g1 16x1x4w4s1g2 16x1x4w4s1g8 16x1x4w4s1g16",
}


def main() -> None:
    """Check in parallel, then time one after another; stop early rather than late."""
    arguments = parse_arguments()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    begin = time.perf_counter()
    report = {"environment": environment(arguments.device), "checks": [], "graphs": [], "kernels": [], "skipped": []}
    report["seed"] = arguments.seed
    jobs = check_jobs(arguments)
    context = get_context("spawn")
    # Processes that end after each job give their memory back.
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        report["checks"] = list(pool.map(partial(check, device=arguments.device), jobs))
    for row in report["checks"]:
        if not row["passed"]:
            print("FAILED", json.dumps(row), flush=True)
    print(f"{len(jobs)} checks, {sum(not r['passed'] for r in report['checks'])} failed, ", end="")
    print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    right = {(r["kernel"], r["factorised"], r["single"], r["candidate"]) for r in report["checks"] if r["passed"]}
    graphs = {}
    for name in arguments.graphs:
        graphs[name] = prepare(name, arguments)
        measure_graph(name, graphs[name], report, arguments)
        write(report, arguments.output)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    for name, graph in graphs.items():
        for kernel, factorised in CANDIDATES:
            if time.perf_counter() - begin > arguments.budget:
                report["skipped"].append([name, kernel, factorised])
                continue
            measure_kernel(name, graph, kernel, factorised, right, report, arguments)
        write(report, arguments.output)
    print(f"{time.perf_counter() - begin:.0f} s, left out: {report['skipped']}", flush=True)


# Graphs


def octahedral(latitudes: int) -> np.ndarray:
    """Nodes of an octahedral reduced grid with ``latitudes`` per hemisphere, north to south, as unit vectors."""
    rings = []
    for ring in range(2 * latitudes):
        count = 20 + 4 * min(ring, 2 * latitudes - 1 - ring)
        latitude = np.pi / 2 - (ring + 0.5) * np.pi / (2 * latitudes)
        longitude = np.arange(count) * 2 * np.pi / count
        sine = np.full(count, np.sin(latitude))
        rings.append(np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), sine], 1))
    return np.concatenate(rings)


def nearest(source: np.ndarray, destination: np.ndarray, count: int) -> np.ndarray:
    """Edges to each destination from its ``count`` nearest sources: ``[2, M]``."""
    _, neighbours = cKDTree(source).query(destination, k=count, workers=-1)
    return np.stack([neighbours.reshape(-1), np.repeat(np.arange(len(destination)), count)])


def build(name: str, hidden_latitudes: int, data_latitudes: int) -> tuple[Tensor, tuple[int, int]]:
    """Return ``edge_index`` sorted by destination, then source, and ``(N_src, N_dst)``."""
    hidden, data = octahedral(hidden_latitudes), octahedral(data_latitudes)
    if name == "decoder":
        edges, sizes = nearest(hidden, data, 3), (len(hidden), len(data))
    elif name == "encoder":
        edges, sizes = nearest(hidden, data, 3)[::-1], (len(data), len(hidden))
    else:
        # Eight neighbours and the node itself, and four coarse long-range ones.
        coarse = np.arange(0, len(hidden), 16)
        far = nearest(hidden[coarse], hidden, 4)
        edges = np.concatenate([nearest(hidden, hidden, 9), np.stack([coarse[far[0]], far[1]])], 1)
        sizes = (len(hidden), len(hidden))
    order = np.lexsort((edges[0], edges[1]))
    return torch.from_numpy(edges[:, order].copy()), sizes


def random_graph(single: bool, num_edges: int = 5000) -> tuple[Tensor, tuple[int, int]]:
    """A small graph with repeated edges, isolated nodes and, unless ``single``, a hub on either side."""
    generator = torch.Generator().manual_seed(int(single))
    num_src, num_dst = 300, 400
    if single:
        # At most three edges by destination as by source.
        destination = torch.arange(290)
        edges = [torch.stack([(destination * step + step) % 300, destination]) for step in (1, 7, 11)]
    else:
        edges = [torch.randint(280, (2, num_edges), generator=generator)]
        edges.append(torch.stack([torch.full((1500,), 5), torch.randint(380, (1500,), generator=generator)]))
        edges.append(torch.stack([torch.randint(280, (200,), generator=generator), torch.full((200,), 17)]))
    edge_index = torch.cat(edges, 1)
    return edge_index[:, edge_index[1].argsort(stable=True)], (num_src, num_dst)


# Checks


def draw(
    edge_index: Tensor,
    sizes: tuple[int, int],
    dtype: torch.dtype,
    device: str,
    heads: int = NUM_HEADS,
    dim: int = HEAD_DIM,
    *,
    seed: int,
) -> dict[str, Tensor]:
    """Draw inputs from a normal distribution, named as the arguments of the public functions."""
    generator = torch.Generator(device).manual_seed(seed)
    num_edges, (num_src, num_dst) = edge_index.shape[1], sizes
    shapes = {
        "query": (num_dst, heads, dim),
        "key": (num_src, heads, dim),
        "value": (num_src, heads, dim),
        "edges": (num_edges, heads, dim),
        "edge_attr": (num_edges, NUM_ATTRIBUTES),
        "weight": (heads * dim, NUM_ATTRIBUTES),
        "bias": (heads * dim,),
        "d_out": (num_dst, heads, dim),
    }
    return {
        name: (
            torch.randn(shape, device=device, dtype=torch.float32, generator=generator)
            / (NUM_ATTRIBUTES**0.5 if name == "weight" else 1.0)
        ).to(dtype)
        for name, shape in shapes.items()
    }


def gradients(function: Callable, tensors: list[Tensor], d_out: Tensor) -> list[Tensor]:
    """Return ``function(*tensors)`` and the gradients of all tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out.to(out.dtype))]


def ours(names: tuple[str, ...], layout: GraphLayout, backend: str = TRITON) -> Callable:
    """The public function that takes tensors of these names."""
    function = graph_attention_factorised if names == FACTORISED else graph_attention
    return lambda *tensors: function(*tensors, layout, backend=backend)


def eager(names: tuple[str, ...], edge_index: Tensor, sizes: tuple[int, int]) -> Callable:
    """Attention as message passing in the dtype of its inputs, edges projected first."""

    def run(query: Tensor, key: Tensor, value: Tensor, edges: Tensor, *projection: Tensor) -> Tensor:
        source, destination = edge_index
        if projection:
            edges = torch.nn.functional.linear(edges, *projection).view(-1, *value.shape[1:])
        scores = (query[destination] * (key[source] + edges)).sum(-1) / query.shape[-1] ** 0.5
        index = destination[:, None].expand_as(scores)
        largest = scores.new_zeros(sizes[1], scores.shape[1])
        largest = largest.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
        weights = torch.exp(scores - largest[destination])
        normaliser = weights.new_zeros(largest.shape).index_add(0, destination, weights)
        weights = weights / normaliser[destination]
        rows = weights[..., None] * (value[source] + edges)
        return rows.new_zeros(sizes[1], *rows.shape[1:]).index_add(0, destination, rows)

    return run


def compare(got: list[Tensor], want: list[Tensor], plain: list[Tensor], names: tuple[str, ...]) -> dict[str, Any]:
    """Errors, those of eager torch, and whether all are at most twice these plus a constant."""
    labels = ["out", *(f"d_{name}" for name in names)]
    errors = {n: (a.double() - b).abs().max().item() for n, a, b in zip(labels, got, want, strict=True)}
    allowed = {n: (a.double() - b).abs().max().item() for n, a, b in zip(labels, plain, want, strict=True)}
    atol = ATOL[got[0].dtype]
    # Written so that NaN fails.
    return {
        "errors": errors,
        "eager_errors": allowed,
        "passed": all(errors[n] <= 2 * allowed[n] + atol for n in labels),
    }


def check_jobs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What ships in several dtypes and shapes, and every candidate in bf16."""
    base = {"kernel": None, "candidate": None, "shape": (NUM_HEADS, HEAD_DIM), "dtype": "bfloat16"}
    both = (False, True)
    shipped = [
        base | {"dtype": dtype, "shape": shape, "factorised": factorised, "single": single}
        for dtype, shape in (
            ("bfloat16", (NUM_HEADS, HEAD_DIM)),
            ("float32", (NUM_HEADS, HEAD_DIM)),
            ("float16", (NUM_HEADS, HEAD_DIM)),
            ("bfloat16", (6, 24)),
            ("bfloat16", (4, 128)),
        )
        for factorised, single in product(both, both)
    ]
    candidates = [
        base | {"kernel": kernel, "candidate": candidate, "factorised": factorised, "single": single}
        for (kernel, factorised), texts in CANDIDATES.items()
        for candidate, single in product(texts.split(), both)
        if not skip(candidate, single)
    ]
    jobs = shipped + (candidates if arguments.candidates else [])
    return [job | {"seed": arguments.seed + index} for index, job in enumerate(jobs)]


def skip(candidate: str, single: bool) -> bool:
    """A loop of one step needs no stages, and steps of two edges do not hold the three of a node."""
    config, _, _ = parse_candidate(candidate)
    return single and (config.num_stages > 1 or config.block_e != 4)


def check(job: dict[str, Any], device: str) -> dict[str, Any]:
    """Compare one case, with a candidate in place of one kernel's configuration, with float64."""
    dtype, single = getattr(torch, job["dtype"]), job["single"]
    names = FACTORISED if job["factorised"] else PLAIN
    edge_index, sizes = random_graph(single, 5000 if device == "cuda" else 600)
    edge_index = edge_index.to(device)
    try:
        tensors = draw(edge_index, sizes, dtype, device, *job["shape"], seed=job["seed"])
        inputs, d_out = [tensors[name] for name in names], tensors["d_out"]
        layout = GraphLayout.from_edge_index(edge_index, sizes)
        wide = [tensor.double() for tensor in inputs]
        want = gradients(ours(names, layout, TORCH), wide, d_out.double())
        plain = gradients(eager(names, edge_index, sizes), inputs, d_out)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with candidate_in_place(job["kernel"], job["candidate"]):
            got = gradients(ours(names, layout), inputs, d_out)
            again = gradients(ours(names, layout), inputs, d_out)
        row = compare(got, want, plain, names)
        row["deterministic"] = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        row["passed"] &= row["deterministic"]
    except Exception as error:
        row = {"passed": False, "error": f"{type(error).__name__}: {str(error)[:200]}"}
    return job | row


@contextmanager
def candidate_in_place(kernel: str | None, candidate: str | None) -> Iterator[None]:
    """Run one kernel with a candidate configuration."""
    if kernel is None or candidate is None:
        yield
        return
    config, groups, registers = parse_candidate(candidate)
    shipped, rule, run, current = configurations.configuration, configurations.groups, launch.Call.launch, [""]

    def configuration(name: str, *args: Any, **kwargs: Any) -> configurations.Configuration:
        current[0] = name
        return config if name == kernel else shipped(name, *args, **kwargs)

    def number(*args: Any, **kwargs: Any) -> int:
        return groups if groups and current[0] == kernel else rule(*args, **kwargs)

    def limited(call: launch.Call, device: torch.device) -> None:
        if registers and kernel.removeprefix("backward_").replace("forward", "fwd") in call.kernel.__name__:
            call = dataclasses.replace(call, launch_options=call.launch_options | {"maxnreg": registers})
        run(call, device)

    configurations.configuration, configurations.groups, launch.Call.launch = configuration, number, limited
    try:
        yield
    finally:
        configurations.configuration, configurations.groups, launch.Call.launch = shipped, rule, run


def parse_candidate(text: str) -> tuple[configurations.Configuration, int, int]:
    """Read ``16x1x4w4s1g2r128``: configuration, groups (0: by the rule), registers (0: no limit)."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)w(\d+)s(\d+)(?:g(\d+))?(?:r(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is no candidate. Allowed: <nodes>x<heads>x<block_e>w<warps>s<stages>[g..][r..].")
    numbers = [int(number or 0) for number in match.groups()]
    return configurations.Configuration(*numbers[:5]), numbers[5], numbers[6]


# Times


def prepare(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build a graph with its layout and inputs in bf16."""
    edge_index, sizes = build(name, *arguments.latitudes)
    edge_index = edge_index.to(arguments.device)
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    graph = {"edge_index": edge_index, "sizes": sizes, "dtype": dtype}
    graph["layout_ms"] = timed(lambda: GraphLayout.from_edge_index(edge_index, sizes))
    graph["layout"] = GraphLayout.from_edge_index(edge_index, sizes)
    return graph


def measure_graph(name: str, graph: dict[str, Any], report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Spot-check and time what ships on one graph."""
    layout, sizes = graph["layout"], graph["sizes"]
    tensors = draw(graph["edge_index"], sizes, graph["dtype"], arguments.device, seed=arguments.seed)
    info = {"graph": name, "num_src": sizes[0], "num_dst": sizes[1], "num_edges": layout.num_edges}
    info |= {"max_in_degree": layout.max_in_degree, "max_out_degree": layout.max_out_degree}
    modes = {"given": (PLAIN, PLAIN), "projected": (FACTORISED, FACTORISED), "factorised": (FACTORISED, FACTORISED)}
    modes["factorised, fixed attributes"] = (FACTORISED, tuple(n for n in FACTORISED if n != "edge_attr"))
    for mode, (names, wanted) in modes.items():
        function = ours(PLAIN if mode == "given" else FACTORISED, layout)
        if mode == "projected":
            function = projected(layout)
        leaves = {n: tensors[n].detach().requires_grad_(n in wanted) for n in names}
        inputs, d_out = list(leaves.values()), tensors["d_out"]
        targets = [leaves[n] for n in wanted]
        row = info | {"mode": mode, "layout_ms": graph["layout_ms"]}
        if mode != "projected" and names == wanted:
            row["spot_check"] = spot_check(function, names, tensors, graph)
        if mode == "factorised":
            # Their sums run over the whole graph, which float64 has no room for.
            other = gradients(projected(layout), inputs, d_out)[-2:]
            found = gradients(function, inputs, d_out)[-2:]
            row["weight_and_bias_vs_projected"] = [
                ((a - b).float().norm() / b.float().norm()).item() for a, b in zip(found, other, strict=True)
            ]
            del other, found
        with torch.no_grad():
            row["forward_ms"] = timed(lambda f=function, x=inputs: f(*x))
        out = function(*inputs)
        row["backward_ms"] = timed(partial(torch.autograd.grad, out, targets, d_out, retain_graph=True))
        del out
        row["peak_gb"] = peak(lambda f=function, x=inputs, t=targets, d=d_out: torch.autograd.grad(f(*x), t, d))
        report["graphs"].append(row)
        print(json.dumps(row), flush=True)


def projected(layout: GraphLayout) -> Callable:
    """The linear layer of the edges, then attention: what factorised edges replace."""

    def run(query: Tensor, key: Tensor, value: Tensor, attr: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        edges = torch.nn.functional.linear(attr, weight, bias).view(-1, *value.shape[1:])
        return graph_attention(query, key, value, edges, layout, backend=TRITON)

    return run


def spot_check(
    function: Callable, names: tuple[str, ...], tensors: dict, graph: dict, count: int = 300
) -> dict[str, Any]:
    """Compare with float64 at some sources, all destinations they feed and all edges of these."""
    edge_index, (num_src, num_dst) = graph["edge_index"], graph["sizes"]
    device = edge_index.device
    got = gradients(function, [tensors[n] for n in names], tensors["d_out"])
    chosen = torch.zeros(num_src, dtype=torch.bool, device=device)
    chosen[torch.randperm(num_src, device=device)[:count]] = True
    # The last row has the largest offset.
    chosen[-1] = True
    fed = torch.zeros(num_dst, dtype=torch.bool, device=device)
    fed[edge_index[1][chosen[edge_index[0]]]] = True
    mine = fed[edge_index[1]].nonzero()[:, 0]
    sources = edge_index[0, mine].unique()
    destinations = fed.nonzero()[:, 0]
    part = torch.stack(
        [torch.searchsorted(sources, edge_index[0, mine]), torch.searchsorted(destinations, edge_index[1, mine])]
    )
    rows = {"query": destinations, "key": sources, "value": sources, "edges": mine, "edge_attr": mine}
    inputs = [tensors[n][rows[n]] if n in rows else tensors[n] for n in names]
    sizes, d_out = (len(sources), len(destinations)), tensors["d_out"][destinations]
    layout = GraphLayout.from_edge_index(part, sizes)
    want = gradients(ours(names, layout, TORCH), [x.double() for x in inputs], d_out.double())
    plain = gradients(eager(names, part, sizes), inputs, d_out)
    complete = chosen[sources]
    labels, parts = [], ([], [], [])
    for index, name in enumerate(("query", *names)):
        # The gradients of weight and bias sum over the whole graph.
        if index and name not in rows:
            continue
        keep = complete if index and name in ("key", "value") else slice(None)
        labels.append(name)
        for results, result in zip(parts, (got[index][rows[name]], want[index], plain[index]), strict=True):
            results.append(result[keep])
    result = compare(*parts, tuple(labels[1:]))
    if not result["passed"]:
        print("FAILED spot check", json.dumps(result), flush=True)
    return result


def measure_kernel(
    name: str,
    graph: dict[str, Any],
    kernel: str,
    factorised: bool,
    right: set,
    report: dict[str, Any],
    arguments: argparse.Namespace,
) -> None:
    """Time every candidate of one kernel that gave right results."""
    tensors = draw(graph["edge_index"], graph["sizes"], graph["dtype"], arguments.device, seed=arguments.seed)
    layout = graph["layout"]
    degree = layout.max_out_degree if kernel == "backward_source" else layout.max_in_degree
    for candidate in CANDIDATES[kernel, factorised].split():
        single = degree <= 4
        if skip(candidate, single) or (kernel, factorised, single, candidate) not in right:
            continue
        with candidate_in_place(kernel, candidate):
            calls = kernel_calls(kernel, factorised, tensors, layout)
            milliseconds = timed(lambda c=calls: [call.launch(tensors["query"].device) for call in c])
        row = {"graph": name, "kernel": kernel, "factorised": factorised, "candidate": candidate, "ms": milliseconds}
        report["kernels"].append(row)
        print(name, kernel, "factorised" if factorised else "given", candidate, f"{milliseconds:.4f}", flush=True)


def kernel_calls(kernel: str, factorised: bool, tensors: dict[str, Tensor], layout: GraphLayout) -> list[launch.Call]:
    """Prepare the launches of one kernel."""
    graph = launch.Graph(*layout.tensors)
    options = launch.Options(layout.max_in_degree, layout.max_out_degree, HEAD_DIM**-0.5)
    query, key, value, d_out = (tensors[n] for n in ("query", "key", "value", "d_out"))
    edges = launch.Edges(tensors["edges"])
    weights = [query.new_zeros((NUM_HEADS, layout.num_edges), dtype=torch.float32) for _ in range(2)]
    grads = launch.Gradients(torch.empty_like(query), None, *weights)
    if factorised:
        edges = launch.Edges(tensors["edge_attr"], tensors["weight"], tensors["bias"])
        both = tuple(query.new_empty(*query.shape[:2], NUM_ATTRIBUTES) for _ in range(2))
        shape = (launch.num_shares(query, edges, options), NUM_HEADS, HEAD_DIM, NUM_ATTRIBUTES + 1)
        grads = grads._replace(projected=both, weight_shares=query.new_empty(shape, dtype=torch.float32))
    elif kernel == "backward_destination":
        grads = grads._replace(edges=torch.empty_like(tensors["edges"]))
    if kernel == "forward":
        return [launch.forward_call(query, key, value, edges, torch.empty_like(query), graph, options)]
    if kernel == "backward_destination":
        return [launch.backward_destination_call(d_out, query, key, value, edges, grads, graph, options)]
    d_key, d_value = torch.empty_like(key), torch.empty_like(value)
    return launch.backward_source_calls(d_out, query, grads, d_key, d_value, graph, options)


def timed(function: Callable) -> float:
    """Median milliseconds on the device."""
    if torch.cuda.is_available():
        return triton.testing.do_bench(function, warmup=10, rep=60, return_mode="median")
    begin = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - begin)


def peak(function: Callable) -> float:
    """Gigabytes that a call needs beyond what is allocated before."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def environment(device: str) -> dict[str, str]:
    """What the numbers belong to."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "triton": triton.__version__, "commit": commit.strip()}


def write(report: dict[str, Any], output: Path | None) -> None:
    """Write all results so far."""
    if output:
        output.write_text(json.dumps(report, indent=1))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["encoder", "decoder", "processor"]
    parser.add_argument("--graphs", nargs="+", choices=names, default=names, help="graphs to time")
    parser.add_argument(
        "--latitudes", type=int, nargs=2, default=[96, 360], help="of hidden and data grid, a hemisphere"
    )
    parser.add_argument("--no-candidates", dest="candidates", action="store_false", help="time what ships alone")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds after which no more candidates are timed")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a trial in the interpreter")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % (1 << 31), help="of the inputs; new ones by default"
    )
    parser.add_argument("--output", type=Path, help="write all results to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
