# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Train with Triton attention, then forecast with the backend as trained, as configured and as the environment says.

Everything goes through the released command lines: anemoi-datasets, anemoi-training and anemoi-inference.
"""

import argparse
import shutil
import sys
import time
from datetime import datetime
from datetime import timedelta
from pathlib import Path

import numpy as np
from plot import plot_pressure
from report import Summary
from report import format_table
from report import write_summary
from score import VARIABLES
from score import Analyses
from score import Forecast
from score import all_finite
from score import largest_differences
from score import read_forecast
from score import score
from steps import RUNS
from steps import StepFailed
from steps import backends_of
from steps import forecast
from steps import run_command
from steps import say

# Training ends on 17 January 06 UTC. Ten dates: the last ones from which +24 h still verifies.
FIRST_DATE = datetime(1996, 1, 17, 12)
NUM_DATES = 10
LEAD_TIME = "24h"
SCORED_LEADS = (6, 12, 24)
# In the middle of the dates and of the leads.
PLOTTED_DATE = np.datetime64("1996-01-18T12:00:00")
PLOTTED_LEAD = 12

# Backends sum in another order. In the units of each variable, a thousandth of what its analysis is precise to.
TOLERANCE = {"2t": 1e-2, "10u": 1e-2, "10v": 1e-2, "msl": 1.0, "u_500": 1e-2, "v_500": 1e-2}

MARKER = ".anemoi-attention-demo"
REPORTS = ("summary.json", "table.txt", "msl.png")
# `outputs` is what Hydra writes beside the training's own folder.
OF_RUNS = tuple(f"{folder}/{run.name}" for folder in ("forecasts", "runs", "logs") for run in RUNS)
OUTPUTS = ("blizzard-1996.zarr", "output", "outputs", "logs/dataset.log", *OF_RUNS, *REPORTS)


def prepare(directory: Path) -> None:
    """Make the folder, or clear the demo's own outputs from an earlier one.

    Raises
    ------
    StepFailed
        If the folder holds something and was not made by the demo.
    """
    marker = directory / MARKER
    if directory.exists() and not directory.is_dir():
        raise StepFailed(f"{directory} is a file. Name a folder with --output.")
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise StepFailed(f"{directory} is not empty and was not made by the demo. Name another folder with --output.")
    directory.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for name in OUTPUTS:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def read_forecasts(directory: Path, analyses: Analyses) -> dict[str, list[Forecast]]:
    """Read the forecasts of each run, in the order of their dates."""
    return {
        run.title: [read_forecast(path, analyses) for path in sorted((directory / "forecasts" / run.name).glob("*.nc"))]
        for run in RUNS
    }


def evaluate(directory: Path, seconds: dict[str, float], dates: list[datetime]) -> Summary:
    """Compare, score and check the forecasts."""
    analyses = Analyses(directory / "blizzard-1996.nc")
    forecasts = read_forecasts(directory, analyses)
    scores = score(forecasts[RUNS[0].title], analyses, SCORED_LEADS)
    differences = largest_differences(list(forecasts.values()))
    backends = {run.title: backends_of(run, directory) for run in RUNS}
    asked = [backends[run.title] for run in RUNS[1:]]
    checks = {
        "every forecast is finite": all(all_finite(items) for items in forecasts.values()),
        "both ways of choosing scaled_dot_product_attention took effect": all(
            entry.name == "scaled_dot_product_attention"
            for entries in asked
            for entry in entries
            if entry.kind == "transformer"
        ),
        "the three forecasts agree within rounding": all(
            difference <= TOLERANCE[name] for name, difference in differences.items()
        ),
        f"the forecast beats persistence for every variable at +{SCORED_LEADS[0]} h": all(
            item.gain > 0 for item in scores if item.lead_hours == SCORED_LEADS[0]
        ),
    }
    _plot(forecasts[RUNS[0].title], analyses, directory / "msl.png")
    return Summary(backends, differences, scores, checks, seconds, [f"{date:%Y-%m-%dT%H:%M:%S}" for date in dates])


def _plot(forecasts: list[Forecast], analyses: Analyses, path: Path) -> None:
    chosen = next(item for item in forecasts if item.date == PLOTTED_DATE)
    valid = chosen.date + np.timedelta64(PLOTTED_LEAD, "h")
    analysis = analyses.field("msl", valid)
    if analysis is None:
        raise StepFailed(f"There is no analysis at {valid} to plot.")
    plot_pressure(
        analysis,
        chosen.fields["msl"][PLOTTED_LEAD],
        analyses.latitudes,
        analyses.longitudes,
        title=f"Mean sea-level pressure, {np.datetime_as_string(chosen.date, unit='h')} UTC + {PLOTTED_LEAD} h",
        path=path,
    )


def run_demo(directory: Path) -> Summary:
    """Run every step and return what came out."""
    prepare(directory)
    dates = [FIRST_DATE + timedelta(hours=6 * index) for index in range(NUM_DATES)]
    seconds = {}
    say("1 of 4: the data, and a dataset from them")
    run_command(["anemoi-attention", "example", "."], directory)
    (directory / "logs").mkdir(exist_ok=True)
    dataset_log = directory / "logs" / "dataset.log"
    seconds["dataset"] = run_command(
        ["anemoi-datasets", "create", "recipe.yaml", "blizzard-1996.zarr"], directory, dataset_log
    )
    say("2 of 4: training, with triton_attention (on a CPU: its torch path), to 17 January 1996 06 UTC")
    seconds["training"] = run_command(["anemoi-training", "train", "--config-name=attention_blizzard"], directory)
    say(f"3 of 4: {NUM_DATES} forecasts of {LEAD_TIME} in each of three ways, on dates that training did not see")
    for run in RUNS:
        seconds[f"inference ({run.title})"] = forecast(run, dates, LEAD_TIME, directory)
    say("4 of 4: scores")
    return evaluate(directory, seconds, dates)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo from the command line and return its exit status: 0 if every check holds."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python demo/run.py --output demo-output\n\n"
        "Takes about five minutes on two CPU cores. Variables forecast: " + ", ".join(VARIABLES) + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="folder for all outputs; one that the demo made before is used again (default: demo-output)",
    )
    directory = parser.parse_args(arguments).output
    start = time.monotonic()
    try:
        summary = run_demo(directory)
    except StepFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    summary.seconds["all"] = time.monotonic() - start
    table = format_table(summary)
    (directory / "table.txt").write_text(table + "\n")
    write_summary(summary, directory / "summary.json")
    print(f"\n{table}\n\nWritten to {directory}: {', '.join(REPORTS)}, forecasts/*/*.nc")
    return 0 if summary.passed else 1


if __name__ == "__main__":
    sys.exit(main())
