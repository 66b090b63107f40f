# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Model sharding (case G62): two processes with gloo compute what one process computes."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("anemoi.models", reason="these are its layers")

from graph_models import OURS
from graph_models import PYG
from graph_models import GraphTransformer
from graph_models import inputs
from graph_models import randomised
from graph_models import step
from torch import Tensor

from anemoi.plugins.attention.models import enable

WORLD_SIZE = 2


def run_rank(rank: int, folder: str, strategy: str, num_heads: int) -> None:
    """Compute output and gradients of one process with each backend, and write them to a file."""
    torch.set_num_threads(1)
    enable()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    results = {}
    for backend in (OURS, PYG):
        model = randomised(GraphTransformer(backend, num_heads=num_heads, shard_strategy=strategy))
        results[backend] = step(model, *inputs(), 1, dist.group.WORLD)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run_sharded(folder: Path, strategy: str, num_heads: int) -> list[dict[str, dict[str, Tensor]]]:
    """Return what each process found."""
    torch.multiprocessing.start_processes(
        run_rank, (str(folder), strategy, num_heads), nprocs=WORLD_SIZE, start_method="spawn"
    )
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD_SIZE)]


# 45 and 21 nodes: the two ranks have uneven parts.
@pytest.mark.usefixtures("enabled_plugin")
@pytest.mark.parametrize("strategy", ["edges", "heads"])
@pytest.mark.parametrize("num_heads", [16, 6])
def test_g62_two_processes_compute_what_one_computes(strategy: str, num_heads: int, tmp_path: Path):
    ranks = run_sharded(tmp_path, strategy, num_heads)
    model = randomised(GraphTransformer(OURS, num_heads=num_heads, shard_strategy=strategy))
    single = step(model, *inputs())
    parameters = dict(model.named_parameters())
    whole = {name for name in single if name not in parameters or "trainable" in name}
    for name in single:
        found, peers = ([rank[backend][name] for rank in ranks] for backend in (OURS, PYG))
        if name in whole:
            # Output, inputs and trainable edges: each process has all of them.
            for one, peer in zip(found, peers, strict=True):
                torch.testing.assert_close(one, single[name], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(one, peer, rtol=1e-4, atol=1e-4)
        else:
            # Each process has a part, which the host's strategy for training adds up.
            torch.testing.assert_close(sum(found), single[name], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(sum(found), sum(peers), rtol=1e-3, atol=1e-3)
