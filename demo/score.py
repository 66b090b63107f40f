# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Scores of the forecasts against the analyses, and against persistence."""

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import NDArray

VARIABLES = {"2t": "K", "10u": "m/s", "10v": "m/s", "msl": "Pa", "u_500": "m/s", "v_500": "m/s"}
"""Name and unit of each forecast variable."""

Field = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Root-mean-square errors of one variable at one lead time, over all forecasts that verify."""

    variable: str
    lead_hours: int
    forecast: float
    persistence: float
    num_forecasts: int

    @property
    def gain(self) -> float:
        """By how much the forecast is better than persistence: 1 is perfect, below 0 is worse."""
        return 1.0 - self.forecast / self.persistence


class Analyses:
    """The shipped analyses, at the points that hold data.

    Parameters
    ----------
    path : Path
        The original netCDF file, not the dataset made from it: the scores check the dataset, too.
    """

    def __init__(self, path: Path) -> None:
        with xr.open_dataset(path) as source:
            stacked = source[list(VARIABLES)].stack(point=("latitude", "longitude")).load()
        # A point of the domain has a value at some time; fields that are missing as a whole stay NaN.
        inside = stacked["2t"].notnull().any("time").values
        stacked = stacked.isel(point=inside)
        self.latitudes: Field = stacked["latitude"].values.astype(float)
        self.longitudes: Field = stacked["longitude"].values.astype(float)
        times = stacked["time"].values.astype("datetime64[s]")
        self._indices = {str(time): index for index, time in enumerate(times)}
        self._values = {name: stacked[name].transpose("time", "point").values.astype(float) for name in VARIABLES}

    def field(self, variable: str, date: np.datetime64) -> Field | None:
        """Return ``[points]`` of one variable, or None if there is no complete field at this date."""
        index = self._indices.get(str(date.astype("datetime64[s]")))
        if index is None or np.isnan(self._values[variable][index]).any():
            return None
        values: Field = self._values[variable][index]
        return values

    def complete(self, date: datetime) -> bool:
        """Whether every variable has a field at this date."""
        return all(self.field(variable, np.datetime64(date)) is not None for variable in VARIABLES)


@dataclass(frozen=True)
class Forecast:
    """One forecast: ``fields[variable][lead_hours]`` is ``[points]``, in the order of the analyses."""

    date: np.datetime64
    fields: dict[str, dict[int, Field]]


def read_forecast(path: Path, analyses: Analyses) -> Forecast:
    """Read what anemoi-inference wrote.

    Raises
    ------
    ValueError
        If its points are not those of the analyses.
    """
    with xr.open_dataset(path, decode_timedelta=False) as source:
        loaded = source.load()
    here = np.stack([loaded["latitude"].values, (loaded["longitude"].values + 180.0) % 360.0 - 180.0])
    there = np.stack([analyses.latitudes, analyses.longitudes])
    order, expected = np.lexsort(here), np.lexsort(there)
    if here.shape != there.shape or not np.allclose(here[:, order], there[:, expected], atol=1e-3):
        raise ValueError(f"The points of {path} are not those of the analyses. Make both from the same data.")
    position = np.empty_like(order)
    position[expected] = order
    leads = [int(period) // 3600 for period in loaded["forecast_period"].values]
    fields = {
        name: {lead: loaded[name].values[index][position].astype(float) for index, lead in enumerate(leads)}
        for name in VARIABLES
    }
    return Forecast(np.datetime64(loaded["forecast_reference_time"].values.item(), "ns"), fields)


def rmse(difference: Field, latitudes: Field) -> float:
    """Return the root-mean-square of ``[forecasts, points]``, each point weighted by the area it stands for."""
    weights = np.cos(np.deg2rad(latitudes))
    return float(np.sqrt(np.average(difference**2, axis=-1, weights=weights).mean()))


def score(forecasts: Sequence[Forecast], analyses: Analyses, lead_hours: Iterable[int]) -> list[Score]:
    """Compare forecasts with the analyses, and with the analysis that each started from (persistence)."""
    scores = []
    for lead in lead_hours:
        for variable in VARIABLES:
            errors, changes = [], []
            for item in forecasts:
                truth = analyses.field(variable, item.date + np.timedelta64(lead, "h"))
                start = analyses.field(variable, item.date)
                if truth is None or start is None or lead not in item.fields[variable]:
                    continue
                errors.append(item.fields[variable][lead] - truth)
                changes.append(start - truth)
            if not errors:
                raise ValueError(f"No forecast of {variable} at +{lead} h verifies. Choose other dates or leads.")
            latitudes = analyses.latitudes
            scores.append(
                Score(
                    variable,
                    lead,
                    rmse(np.array(errors), latitudes),
                    rmse(np.array(changes), latitudes),
                    len(errors),
                )
            )
    return scores


def largest_differences(runs: Sequence[Sequence[Forecast]]) -> dict[str, float]:
    """Return, for each variable, the largest difference between any two runs, over all dates, leads and points."""
    spread = {}
    for variable in VARIABLES:
        values = np.array(
            [[list(item.fields[variable].values()) for item in forecasts] for forecasts in runs]
        )  # [runs, dates, leads, points]
        spread[variable] = float((values.max(axis=0) - values.min(axis=0)).max())
    return spread


def all_finite(forecasts: Iterable[Forecast]) -> bool:
    """Whether no forecast holds NaN or infinity."""
    return all(
        bool(np.isfinite(values).all())
        for item in forecasts
        for leads in item.fields.values()
        for values in leads.values()
    )
