# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The pairs of releases that are tested: anemoi-models with the anemoi-inference of its time."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

# anemoi-models before 0.7 asks for this.
_OLD_GEOMETRIC = ("torch-geometric==2.4.0",)
# anemoi-inference 0.8 to 0.11.0 imports a module that later releases of this do not have.
_OLD_TRANSFORM = ("anemoi-transform==0.2.0",)


@dataclass(frozen=True)
class Pair:
    """One release of anemoi-models and one of anemoi-inference.

    Parameters
    ----------
    models, inference : str
        Versions.
    extra : tuple of str
        Further requirements that differ from today's.
    """

    models: str
    inference: str
    extra: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed, without dependencies."""
        return (f"anemoi-models=={self.models}", f"anemoi-inference=={self.inference}", *self.extra)

    @property
    def takes_options(self) -> bool:
        """Whether the run configuration can give a runner options; up to 0.6.0 it can only name one."""
        return Version(self.inference) > Version("0.6.0")

    def honours(self, layer: str) -> bool:
        """Whether this release's own attention, without flash-attention, honours the options of a layer."""
        if "softcap" in layer or "ALiBi" in layer:
            # Ignored, from 0.13 on refused.
            return False
        return "window" not in layer or Version(self.models) >= Version("0.4")


PAIRS = (
    Pair("0.2.1", "0.4.9", _OLD_GEOMETRIC),
    Pair("0.3.1", "0.4.9", _OLD_GEOMETRIC),
    Pair("0.4.2", "0.4.11", _OLD_GEOMETRIC),
    Pair("0.5.1", "0.5.4", _OLD_GEOMETRIC),
    Pair("0.6.0", "0.6.0", _OLD_GEOMETRIC),
    Pair("0.7.0", "0.6.1"),
    Pair("0.8.1", "0.6.3"),
    Pair("0.9.7", "0.8.0", _OLD_TRANSFORM),
    Pair("0.10.0", "0.8.2", _OLD_TRANSFORM),
    Pair("0.11.3", "0.8.3", _OLD_TRANSFORM),
    Pair("0.12.1", "0.9.1", _OLD_TRANSFORM),
    Pair("0.13.1", "0.10.0", _OLD_TRANSFORM),
    Pair("0.14.1", "0.10.1", _OLD_TRANSFORM),
    Pair("0.15.1", "0.11.0", _OLD_TRANSFORM),
    Pair("0.16.0", "0.11.1"),
    Pair("0.17.0", "0.11.2"),
    Pair("0.18.0", "0.12.0"),
    Pair("0.19.0", "0.13.0"),
)

# The oldest, the first with the override of the environment, and today's.
ALWAYS = tuple(pair for pair in PAIRS if pair.models in ("0.3.1", "0.15.1", "0.19.0"))
