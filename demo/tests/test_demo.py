# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The parts of the demo that compute, draw, read logs and clear up."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from plot import plot_pressure
from report import Summary
from report import format_table
from report import write_summary
from run import FIRST_DATE
from run import MARKER
from run import NUM_DATES
from run import prepare
from score import VARIABLES
from score import Analyses
from score import Forecast
from score import largest_differences
from score import rmse
from score import score
from steps import RUNS
from steps import Backend
from steps import StepFailed
from steps import backends_of
from steps import parse_backends
from steps import write_run_configuration

LOG = (
    "INFO Attention backends: graph_transformer=pyg (runs on every device) in 2 layers, from the checkpoint; "
    "transformer=scaled_dot_product_attention (part of torch) in 1 layer, from runner.attention.transformer, "
    "the checkpoint says triton_attention.\n"
)


@pytest.fixture(scope="module")
def analyses() -> Analyses:
    return Analyses(Path(str(files("anemoi.plugins.attention.training.example").joinpath("blizzard-1996.nc"))))


def forecast_from(analyses: Analyses, date: str, error: float) -> Forecast:
    """A forecast that is the analysis plus one number."""
    start = np.datetime64(date)
    fields = {}
    for name in VARIABLES:
        truth = {lead: analyses.field(name, start + np.timedelta64(lead, "h")) for lead in (6, 24)}
        fields[name] = {lead: values + error for lead, values in truth.items() if values is not None}
    return Forecast(start, fields)


def test_analyses_hold_the_points_with_data_and_no_incomplete_field(analyses: Analyses):
    assert analyses.latitudes.shape == (964,)
    assert analyses.field("v_500", np.datetime64("1996-01-14T00")) is None
    assert analyses.field("2t", np.datetime64("1996-01-14T00")) is not None
    assert analyses.field("2t", np.datetime64("1996-02-01T00")) is None


def test_demo_dates_are_complete_and_verify(analyses: Analyses):
    from datetime import timedelta

    for index in range(NUM_DATES):
        for lead in (0, 6, 12, 24):
            assert analyses.complete(FIRST_DATE + timedelta(hours=6 * index + lead))


def test_rmse_weighs_by_area():
    assert rmse(np.array([[3.0, 3.0]]), np.array([0.0, 60.0])) == pytest.approx(3.0)
    assert rmse(np.array([[3.0, 0.0]]), np.array([0.0, 60.0])) == pytest.approx(np.sqrt(9.0 * 1.0 / 1.5))


def test_score_against_persistence(analyses: Analyses):
    forecasts = [forecast_from(analyses, date, 2.0) for date in ("1996-01-18T00", "1996-01-18T12")]
    scores = score(forecasts, analyses, (6, 24))
    assert all(item.forecast == pytest.approx(2.0) and item.num_forecasts == 2 for item in scores)
    changes = [
        analyses.field("msl", item.date + np.timedelta64(24, "h")) - analyses.field("msl", item.date)
        for item in forecasts
    ]
    found = next(item for item in scores if item.variable == "msl" and item.lead_hours == 24)
    assert found.persistence == pytest.approx(rmse(np.array(changes), analyses.latitudes))
    assert found.gain == pytest.approx(1.0 - 2.0 / found.persistence)


def test_score_leaves_out_fields_that_do_not_exist(analyses: Analyses):
    forecasts = [forecast_from(analyses, date, 0.0) for date in ("1996-01-13T18", "1996-01-18T00")]
    counts = {item.variable: item.num_forecasts for item in score(forecasts, analyses, (6,))}
    assert counts["v_500"] == 1
    assert counts["2t"] == 2


def test_largest_differences_are_those_of_any_two_runs(analyses: Analyses):
    runs = [[forecast_from(analyses, "1996-01-18T00", error)] for error in (0.0, 0.5, -1.0)]
    assert largest_differences(runs)["msl"] == pytest.approx(1.5)


def test_backends_are_read_from_the_log(tmp_path: Path):
    expected = [
        Backend("graph_transformer", "pyg", 2, "the checkpoint"),
        Backend("transformer", "scaled_dot_product_attention", 1, "runner.attention.transformer"),
    ]
    assert parse_backends(LOG) == expected
    assert parse_backends("no such line") == []
    logs = tmp_path / "logs" / RUNS[0].name
    logs.mkdir(parents=True)
    (logs / "a.log").write_text(LOG)
    assert backends_of(RUNS[0], tmp_path) == expected
    (logs / "b.log").write_text(LOG.replace("=pyg", "=triton_attention"))
    with pytest.raises(StepFailed, match="others of the run say"):
        backends_of(RUNS[0], tmp_path)


def test_the_log_line_is_still_what_inference_writes(blizzard_checkpoint: Path, blizzard_dataset: Path, tmp_path, cli):
    """The table's source: one real forecast of each run."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "inference-last.ckpt").symlink_to(blizzard_checkpoint)
    (tmp_path / "blizzard-1996.zarr").symlink_to(blizzard_dataset)
    found = {}
    for run in RUNS:
        configuration = write_run_configuration(run, FIRST_DATE, "6h", tmp_path)
        done = cli(tmp_path, "anemoi-inference", "run", str(configuration), **run.environment)
        found[run.name] = {(entry.kind, entry.name) for entry in parse_backends(done.stdout)}
    graph = ("graph_transformer", "triton_attention")
    sdpa = {graph, ("transformer", "scaled_dot_product_attention")}
    assert found["as-trained"] == {graph, ("transformer", "triton_attention")}
    assert found["run-configuration"] == found["environment"] == sdpa


def test_prepare_keeps_what_is_not_its_own(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StepFailed, match="was not made by the demo"):
        prepare(tmp_path)
    own = tmp_path / "demo-output"
    prepare(own)
    (own / "forecasts" / RUNS[0].name).mkdir(parents=True)
    (own / "runs").mkdir()
    (own / "runs" / "mine.yaml").touch()
    (own / "summary.json").touch()
    (own / "notes.txt").touch()
    prepare(own)
    kept = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())
    assert kept == [MARKER, "notes.txt", "runs/mine.yaml"]
    assert not (own / "forecasts" / RUNS[0].name).exists()
    with pytest.raises(StepFailed, match="is a file"):
        prepare(own / "notes.txt")


def test_plot(analyses: Analyses, tmp_path: Path):
    field = analyses.field("msl", np.datetime64("1996-01-18T12"))
    assert field is not None
    path = tmp_path / "msl.png"
    plot_pressure(field, field + 300.0, analyses.latitudes, analyses.longitudes, title="test", path=path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_table_and_summary(analyses: Analyses, tmp_path: Path):
    forecasts = [forecast_from(analyses, "1996-01-18T00", 1.0)]
    summary = Summary(
        {"as trained": parse_backends(LOG)},
        largest_differences([forecasts, forecasts]),
        score(forecasts, analyses, (6, 24)),
        {"holds": True, "does not": False},
        {"training": 60.0},
        ["1996-01-18T00:00:00"],
    )
    table = format_table(summary)
    assert "scaled_dot_product_attention" in table
    assert "NO   does not" in table
    assert "few days of one winter" in table
    assert not summary.passed
    write_summary(summary, tmp_path / "summary.json")
    assert '"lead_hours": 24' in (tmp_path / "summary.json").read_text()


def test_help_shows_an_example():
    script = Path(__file__).parents[1] / "run.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "python demo/run.py --output demo-output" in done.stdout
