# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The shipped data and recipe, through ``anemoi-datasets create``."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

VARIABLES = ("2t", "10u", "10v", "msl", "u_500", "v_500")
MISSING = [np.datetime64("1996-01-09T06:00:00"), np.datetime64("1996-01-14T00:00:00"), np.datetime64("1996-01-14T06")]


@pytest.fixture(scope="module")
def source() -> xr.Dataset:
    path = files("anemoi.plugins.attention.training.example").joinpath("blizzard-1996.nc")
    with xr.open_dataset(str(path)) as dataset:
        return dataset.load()


@pytest.fixture(scope="module")
def dataset(blizzard_dataset: Path):
    from anemoi.datasets import open_dataset

    return open_dataset(str(blizzard_dataset))


def test_every_date_without_a_field_is_declared_missing(dataset, source):
    """An undeclared one leaves no error anywhere: the statistics, and all forecasts, become NaN."""
    inside = source["2t"].notnull().any("time")
    gaps = set()
    for name in VARIABLES:
        holes = (source[name].isnull() & inside).any(["latitude", "longitude"])
        gaps |= set(source["time"].values[holes.values].astype("datetime64[s]"))
    assert sorted(gaps) == MISSING
    assert sorted(dataset.dates[index] for index in dataset.missing) == MISSING


def test_statistics_are_finite_and_end_with_the_training_dates(dataset, source):
    for name, values in dataset.statistics.items():
        assert np.isfinite(values).all(), name
    for name, values in dataset.statistics_tendencies("6h").items():
        assert np.isfinite(values).all(), name
    inside = source["2t"].notnull().any("time").values
    times = source["time"].values
    used = (times <= np.datetime64("1996-01-17T06")) & ~np.isin(times.astype("datetime64[s]"), MISSING)
    expected = source["msl"].values[used][:, inside].mean()
    assert dataset.statistics["mean"][dataset.name_to_index["msl"]] == pytest.approx(expected, rel=1e-6)


def test_values_are_those_of_the_source(dataset, source):
    assert dataset.shape == (64, 15, 1, 964)
    points = source.sel(
        latitude=xr.DataArray(dataset.latitudes, dims="point"),
        # The dataset may count longitudes from 0 to 360.
        longitude=xr.DataArray((dataset.longitudes + 180.0) % 360.0 - 180.0, dims="point"),
        method="nearest",
    )
    for name in VARIABLES:
        for index in (0, 16, 63):
            expected = points[name].values[index]
            np.testing.assert_array_equal(dataset[index][dataset.name_to_index[name], 0], expected)
