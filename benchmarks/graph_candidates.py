# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Candidate configurations of the graph kernels: checked on a small graph, then timed on the large ones.

A candidate is written ``<nodes>x<heads>x<block_e>w<warps>s<stages>``, with ``g<groups>`` for tiles per program and
``r<registers>`` to limit registers.
"""

from __future__ import annotations

import dataclasses
import json
import re
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

import report
import timing
import torch
from graph_cases import FACTORISED
from graph_cases import HEAD_DIM
from graph_cases import NUM_ATTRIBUTES
from graph_cases import NUM_HEADS
from graph_cases import PLAIN
from graph_cases import draw
from graph_cases import random_graph
from graph_peers import Problem
from graph_peers import prepare
from torch import Tensor

from anemoi.plugins.attention.models.graph import GraphLayout
from anemoi.plugins.attention.models.graph import graph_attention
from anemoi.plugins.attention.models.graph import graph_attention_factorised
from anemoi.plugins.attention.models.graph.functional import TORCH
from anemoi.plugins.attention.models.graph.functional import TRITON
from anemoi.plugins.attention.models.triton.graph_attention import configurations
from anemoi.plugins.attention.models.triton.graph_attention import launch

ATOL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}
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


def run(
    graphs: list[str],
    latitudes: tuple[int, int],
    device: str,
    seed: int,
    workers: int,
    budget: float,
    output: Path | None,
) -> list[dict[str, Any]]:
    """Check in parallel, then time one after another; stop early rather than late.

    Parameters
    ----------
    graphs : list of str
        Graphs to time on.
    latitudes : pair of int
        Of hidden and data grid, a hemisphere.
    device : str
        ``cuda``, or ``cpu`` for a trial in the interpreter.
    seed : int
        Of the inputs.
    workers : int
        Processes that compile and check.
    budget : float
        Seconds after which no more candidates are timed.
    output : Path or None
        JSON file, written again after each kernel.
    """
    began = time.monotonic()
    jobs = check_jobs(seed)
    # Processes that end after each job give their memory back.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        checks = list(pool.map(partial(check, device=device), jobs))
    failed = [row for row in checks if not row["passed"]]
    for row in failed:
        print("FAILED", json.dumps(row), flush=True)
    print(f"{len(jobs)} checks, {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    right = {(r["kernel"], r["factorised"], r["single"], r["candidate"]) for r in checks if r["passed"]}
    content = {**report.provenance(), "seed": seed, "checks": checks, "kernels": [], "left_out": []}
    report.write(content, output)
    for name in graphs:
        problem = prepare(name, "bfloat16" if device == "cuda" else "float32", latitudes, device, seed)
        for kernel, factorised in CANDIDATES:
            if time.monotonic() - began > budget:
                content["left_out"].append([name, kernel, factorised])
                continue
            content["kernels"] += time_kernel(name, problem, kernel, factorised, right)
            report.write(content, output)
    print(f"{time.monotonic() - began:.0f} s, left out: {content['left_out']}", flush=True)
    return checks


def check_jobs(seed: int) -> list[dict[str, Any]]:
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
    return [job | {"seed": seed + index} for index, job in enumerate([*shipped, *candidates])]


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
        want = timing.gradients(ours(names, layout, TORCH), wide, d_out.double())
        plain = timing.gradients(eager(names, edge_index, sizes), inputs, d_out)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with candidate_in_place(job["kernel"], job["candidate"]):
            got = timing.gradients(ours(names, layout), inputs, d_out)
            again = timing.gradients(ours(names, layout), inputs, d_out)
        row = compare(got, want, plain, names)
        row["deterministic"] = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        row["passed"] &= row["deterministic"]
    except Exception as error:
        row = {"passed": False, "error": f"{type(error).__name__}: {str(error)[:200]}"}
    return job | row


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


def time_kernel(name: str, problem: Problem, kernel: str, factorised: bool, right: set[tuple]) -> list[dict[str, Any]]:
    """Time every candidate of one kernel that gave right results."""
    layout, rows = problem.layout, []
    degree = layout.max_out_degree if kernel == "backward_source" else layout.max_in_degree
    for candidate in CANDIDATES[kernel, factorised].split():
        single = degree <= 4
        if skip(candidate, single) or (kernel, factorised, single, candidate) not in right:
            continue
        with candidate_in_place(kernel, candidate):
            calls = kernel_calls(kernel, factorised, problem.tensors, layout)
            times = timing.percentiles(lambda c=calls: [x.launch(problem.edge_index.device) for x in c], 60)
        rows.append({"graph": name, "kernel": kernel, "factorised": factorised, "candidate": candidate, "ms": times})
        form = "factorised" if factorised else "given"
        print(name, kernel, form, candidate, f"{times['p50']:.4f}", flush=True)
    return rows


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
