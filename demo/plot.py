# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A picture of one forecast beside its analysis."""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.tri import Triangulation
from score import Field

# The data lie 1.25 by 2.5 degrees apart: a longer side of a triangle bridges a gap of the area.
LONGEST_SIDE = 4.0


def triangulate(latitudes: Field, longitudes: Field) -> Triangulation:
    """Connect the points, without triangles across the bays of the area's outline."""
    mesh = Triangulation(longitudes, latitudes)
    corners = np.stack([longitudes[mesh.triangles], latitudes[mesh.triangles]], axis=-1)  # [triangles, 3, 2]
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1)
    mesh.set_mask(sides.max(axis=1) > LONGEST_SIDE)
    return mesh


def plot_pressure(
    analysis: Field, forecast: Field, latitudes: Field, longitudes: Field, *, title: str, path: Path
) -> None:
    """Draw mean-sea-level pressure: the analysis, the forecast on the same colours, and their difference.

    Parameters
    ----------
    analysis, forecast : ndarray
        ``[points]``, in Pa, valid at the same time.
    latitudes, longitudes : ndarray
        ``[points]``, in degrees.
    title : str
        Headline.
    path : Path
        The PNG file to write.
    """
    mesh = triangulate(latitudes, longitudes)
    analysis, forecast = analysis / 100.0, forecast / 100.0
    difference = forecast - analysis
    step = 4.0
    lowest = np.floor(min(analysis.min(), forecast.min()) / step) * step
    highest = np.ceil(max(analysis.max(), forecast.max()) / step) * step
    levels = np.arange(lowest, highest + step, step)
    extreme = max(np.ceil(np.abs(difference).max() / step), 1.0) * step
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.2), sharey=True, layout="constrained")
    for axis, values, name in zip(axes, (analysis, forecast), ("analysis", "forecast"), strict=False):
        colours = axis.tricontourf(mesh, values, levels=levels, cmap="viridis")
        lines = axis.tricontour(mesh, values, levels=levels, colors="white", linewidths=0.6)
        axis.clabel(lines, lines.levels[::2], fontsize=7, fmt="%.0f")
        axis.set_title(name)
    figure.colorbar(colours, ax=axes[:2], label="mean sea-level pressure (hPa)", shrink=0.85)
    errors = axes[2].tricontourf(mesh, difference, levels=np.arange(-extreme, extreme + step, step), cmap="RdBu_r")
    axes[2].set_title("forecast minus analysis")
    figure.colorbar(errors, ax=axes[2], label="difference (hPa)", shrink=0.85)
    for axis in axes:
        axis.set_xlabel("longitude (degrees east)")
        # A degree of longitude is shorter than one of latitude.
        axis.set_aspect(1.0 / np.cos(np.deg2rad(latitudes.mean())))
        axis.plot(longitudes, latitudes, ",", color="black", alpha=0.25)
    axes[0].set_ylabel("latitude (degrees north)")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)
