# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""What README.md and the pages of the documentation tell a user to type works.

Every command must be in one of three places: in the sequence of the quickstart, which is executed as it stands; among
the commands that a test of this module executes; or in ``ELSEWHERE``, with the file that runs it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from snippets import REPOSITORY
from snippets import Snippet
from snippets import commands
from snippets import documents
from snippets import snippets

QUICKSTART = "docs/quickstart.rst"
INSTALL = "pip install ./models ./graphs ./training ./inference-plugin"
OWN_DATA = (
    "anemoi-training train --config-name=attention system.input.dataset=/path/to/dataset.zarr "
    "system.output.root=/path/to/output"
)
MY_CONFIG = "anemoi-training config validate --config-name=my_config"
TUNE = "anemoi-attention tune 1,16,40320,64,512 1,16,40320,64,none --output tuned.json"
INSPECT = "anemoi-attention inspect inference-last.ckpt"
CONVERT = "anemoi-attention convert inference-last.ckpt portable.ckpt --transformer scaled_dot_product_attention"
BENCHMARK = "python benchmarks/attention.py --output attention.json"
PLOT = "python benchmarks/attention.py --from-json attention.json --plot attention.png"

# Executed by tests of this module, beside the sequence of the quickstart.
EXECUTED = {
    OWN_DATA: "test_training_on_own_data",
    MY_CONFIG: "test_configuration_of_the_users",
    "anemoi-training train --config-name=my_config model.processor.attention_implementation=triton_attention": (
        "test_override_on_the_command_line"
    ),
    TUNE: "test_commands_for_a_gpu_say_so",
    INSPECT: "test_inspect_and_convert",
    CONVERT: "test_inspect_and_convert",
    BENCHMARK: "test_commands_for_a_gpu_say_so",
    PLOT: "test_plot_of_the_benchmark",
}

# Executed elsewhere: the file, and what must stand in it.
CI = ".github/workflows/ci.yml"
ELSEWHERE = {
    "make demo": (CI, "run: make demo"),
    "make compat": (CI, "run: make compat"),
    "make test": (CI, "run: make test"),
    "make environment": (CI, "run: make environment"),
    INSTALL: (CI, f"run: {INSTALL}"),
}

# Two steps instead of 300.
SHORT = "training.max_steps=2 dataloader.limit_batches.validation=1"
FORCING = (
    "[cos_latitude,cos_longitude,sin_latitude,sin_longitude,cos_julian_day,cos_local_time,sin_julian_day,"
    "sin_local_time,insolation]"
)
# What `attention` needs to train for one step on the blizzard data and a CPU.
SMALL = (
    f"data.datasets.data.forcing={FORCING}",
    "data.datasets.data.diagnostic=[]",
    f"data.datasets.data.processors.normalizer.config={{default: mean-std, std: [], max: [], none: {FORCING}}}",
    "model.bounding.datasets.data=[]",
    "dataloader.training.datasets.data={start: null, end: '1996-01-17T06:00:00'}",
    "dataloader.validation.datasets.data={start: '1996-01-17T12:00:00', end: '1996-01-20'}",
    "dataloader.test.datasets.data={start: '1996-01-17T12:00:00', end: '1996-01-20'}",
    "dataloader.batch_size={training: 1, validation: 1, test: 1}",
    "dataloader.num_workers={training: 1, validation: 1, test: 1}",
    "dataloader.limit_batches={training: 1, validation: 1, test: 1}",
    "dataloader.pin_memory=False",
    "system.hardware.accelerator=cpu",
    "model.num_channels=16",
    "model.processor.num_layers=1",
    "model.processor.num_chunks=1",
    "model.compile=[]",
    "training.max_steps=1",
    "training.num_sanity_val_steps=0",
    "training.metrics.datasets.data=[2t]",
)


def shell(directory: Path, command: str) -> str:
    """Run a command line as typed, with the programs of this environment, and return what it printed."""
    # Not the variables that choose a backend, nor what other tests set for the interpreter of the kernels.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ANEMOI_", "TRITON_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=directory,
        env={"OMP_NUM_THREADS": "1"} | inherited | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def of_language(language: str) -> list[Snippet]:
    return [snippet for document in documents() for snippet in snippets(document) if snippet.language == language]


def test_no_command_is_unlisted() -> None:
    known = {*commands(REPOSITORY / QUICKSTART), *EXECUTED, *ELSEWHERE}
    found = {command: document for document in documents() for command in commands(document)}
    unlisted = [
        f"{document.relative_to(REPOSITORY)}: {command}" for command, document in found.items() if command not in known
    ]
    assert not unlisted, "No test runs these commands:\n" + "\n".join(unlisted)
    assert set(EXECUTED) | set(ELSEWHERE) <= set(found), "A listed command is in no document any more."


@pytest.mark.parametrize("command", ELSEWHERE)
def test_commands_run_elsewhere(command: str) -> None:
    file, text = ELSEWHERE[command]
    assert text in (REPOSITORY / file).read_text()


@pytest.mark.parametrize("name", sorted(set(EXECUTED.values())))
def test_table_names_tests(name: str) -> None:
    assert callable(globals()[name])


def test_quickstart(tmp_path: Path) -> None:
    printed = {}
    for command in commands(REPOSITORY / QUICKSTART):
        if command in ELSEWHERE:
            continue
        if command.startswith("cd "):
            tmp_path = tmp_path / command.removeprefix("cd ")
            continue
        shortened = f"{command} {SHORT}" if command.startswith("anemoi-training train") else command
        printed[command] = shell(tmp_path, shortened)
        # Written by each of the forecasts, so that the next one cannot pass for it.
        if "anemoi-inference run" in command:
            (tmp_path / "output" / "forecast.nc").unlink()
    as_trained, overridden = (text for command, text in printed.items() if "anemoi-inference run" in command)
    assert "transformer=triton_attention" in as_trained
    assert "transformer=scaled_dot_product_attention" in overridden


def test_training_on_own_data(tmp_path: Path, blizzard_dataset: Path) -> None:
    command = OWN_DATA.replace("/path/to/dataset.zarr", str(blizzard_dataset)).replace("/path/to/output", str(tmp_path))
    shell(tmp_path, f"{command} {shlex.join(SMALL)}")
    assert (tmp_path / "inference-last.ckpt").exists()


def test_inspect_and_convert(tmp_path: Path, blizzard_checkpoint: Path) -> None:
    (tmp_path / "inference-last.ckpt").symlink_to(blizzard_checkpoint)
    assert shell(tmp_path, INSPECT).count("triton_attention") == 4
    shell(tmp_path, CONVERT)
    shown = shell(tmp_path, INSPECT.replace("inference-last", "portable"))
    assert shown.count("scaled_dot_product_attention") == shown.count("triton_attention") == 2


def test_configuration_of_the_users(tmp_path: Path) -> None:
    (snippet,) = (snippet for snippet in of_language("yaml") if "# my_config.yaml" in snippet.text)
    (tmp_path / "my_config.yaml").write_text(snippet.text)
    assert "Config files validated" in shell(tmp_path, MY_CONFIG)


def test_override_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra import compose
    from hydra import initialize

    (tmp_path / "my_config.yaml").write_text("defaults:\n- attention_blizzard\n- _self_\n")
    monkeypatch.chdir(tmp_path)
    (command,) = (command for command in EXECUTED if "my_config model" in command)
    with initialize(version_base=None):
        config = compose(config_name="my_config", overrides=command.split()[3:])
    assert config.model.processor.attention_implementation == "triton_attention"


@pytest.mark.parametrize("command", [TUNE, BENCHMARK])
def test_commands_for_a_gpu_say_so(command: str, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is present, and the command takes minutes")
    (tmp_path / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
    with pytest.raises(AssertionError, match=r"GPU.*(Run it on one|Run the tuner)"):
        shell(tmp_path, command)
    assert [path.name for path in tmp_path.iterdir()] == ["benchmarks"]


def test_plot_of_the_benchmark(tmp_path: Path) -> None:
    times = {
        name: {"p20": 1.0, "p50": 1.1, "p80": 1.2} for name in ("forward_ms", "backward_ms", "forward_backward_ms")
    }
    shape = {"batch": 1, "heads": 2, "length": 64, "head_dim": 16, "window": None, "peak_bytes": 1000}
    row = {"case": "global", "implementation": "ours", "errors": {"out": 1e-3}, **shape, **times}
    provenance = {"gpu": "a GPU", "torch": "2", "triton": "3", "commit": "0"}
    lost = {**row, "implementation": "fa2", "forward_ms": {"p20": 0.4, "p50": 0.55, "p80": 0.6}}
    skipped = {"case": "global", "implementation": "cudnn", **shape, "skipped": "no window"}
    rows = [{**one, **provenance} for one in (row, lost, skipped)]
    (tmp_path / "attention.json").write_text(json.dumps(rows))
    (tmp_path / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
    printed = shell(tmp_path, PLOT)
    # A loss is shown as one.
    assert "(0.50x)" in printed
    assert "no window" in printed
    assert (tmp_path / "attention.png").stat().st_size > 1000


@pytest.mark.parametrize("snippet", of_language("python"), ids=str)
def test_python(snippet: Snippet, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "dataset.zarr" in snippet.text:
        (tmp_path / "dataset.zarr").symlink_to(request.getfixturevalue("blizzard_dataset"))
    # In another process: `enable()` would last.
    script = tmp_path / "snippet.py"
    script.write_text(snippet.text)
    shell(tmp_path, f"python {script}")


@pytest.mark.parametrize("snippet", of_language("yaml"), ids=str)
def test_yaml(snippet: Snippet) -> None:
    from anemoi.inference.runners import runner_registry

    from anemoi.plugins.attention.models.attention_backends import canonical_name

    content = yaml.safe_load(snippet.text)
    kinds = {"attention_implementation": "transformer", "graph_attention_backend": "graph_transformer"}
    for key, value in leaves(content):
        if key in kinds:
            canonical_name(value, kinds[key], key)
    runner = content.get("runner") if isinstance(content, dict) else None
    for name, options in runner.items() if isinstance(runner, dict) else ():
        assert name in runner_registry.registered
        for kind in ("transformer", "graph_transformer"):
            if kind in options:
                canonical_name(options[kind], kind, kind)


def leaves(content: object) -> Iterator[tuple[str, object]]:
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield key, value


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_variables_exist(document: Path) -> None:
    from anemoi.plugins.attention.models.environment import VARIABLES

    named = set(re.findall(r"\bANEMOI_INFERENCE_[A-Z_]*_BACKEND\b", document.read_text()))
    assert named <= set(VARIABLES.values())


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_files_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)|<img [^>]*src=\"([^\":]+)\"", document.read_text())
    missing = [link for pair in links for link in pair if link and not (document.parent / link).exists()]
    assert not missing


def test_pages_build(tmp_path: Path) -> None:
    # Also runs the commands of `command-output` directives.
    shell(REPOSITORY, f"sphinx-build -W -q -b html -d {tmp_path}/doctrees docs {tmp_path}/html")
