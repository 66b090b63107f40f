# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Train the shipped blizzard job with several attention backends from one seed, and lay their losses side by side.

Example, on a GPU::

    python benchmarks/training_loss.py --dataset blizzard-1996.zarr --accelerator cuda --steps 200 --output loss.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

BACKENDS = ("triton_attention", "scaled_dot_product_attention")


def train(backend: str, dataset: Path, accelerator: str, steps: int, precision: str, seed: int) -> dict[str, object]:
    """Train once by ``anemoi-training`` and return the loss of each step."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "loss.json"
        command = [
            "anemoi-training",
            "train",
            "--config-name=attention_blizzard",
            f"system.input.dataset={dataset.resolve()}",
            f"system.output.root={folder}/output",
            f"system.hardware.accelerator={accelerator}",
            f"model.processor.attention_implementation={backend}",
            f"training.max_steps={steps}",
            f"training.precision={precision}",
            f"diagnostics.callbacks=[{{_target_: loss_recorder.LossRecorder, path: {record}}}]",
        ]
        environment = dict(os.environ, ANEMOI_BASE_SEED=str(seed))
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment.get("PYTHONPATH", "")])
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0 or not record.exists():
            sys.exit(f"Training with {backend} failed (exit status {done.returncode}):\n{done.stdout.decode()[-6000:]}")
        return {
            "backend": backend,
            "seconds": round(time.perf_counter() - start, 1),
            "attention": sorted({line for line in done.stdout.decode().splitlines() if "triton_attention on" in line}),
            **json.loads(record.read_text()),
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="the blizzard dataset")
    parser.add_argument("--accelerator", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between two lines of the table")
    parser.add_argument("--precision", default="32-true", help="as in training.precision")
    parser.add_argument("--seed", type=int, default=1996)
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not args.dataset.exists():
        parser.error(f"--dataset {args.dataset} does not exist. Make it with 'anemoi-datasets create' first.")
    runs = [
        train(backend, args.dataset, args.accelerator, args.steps, args.precision, args.seed)
        for backend in args.backends
    ]
    print("step  " + "  ".join(f"{run['backend']:>30}" for run in runs))
    for step in [0, *range(args.every - 1, args.steps, args.every)]:
        print(f"{step + 1:4}  " + "  ".join(f"{run['loss'][step]:30.6f}" for run in runs))
    if args.output:
        device = torch.cuda.get_device_name() if args.accelerator == "cuda" else "cpu"
        report = {"device": device, "torch": torch.__version__, "precision": args.precision, "runs": runs}
        args.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
