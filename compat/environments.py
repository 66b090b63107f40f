# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""An environment for each pair of releases.

It has the released hosts of its own, from the package index, and sees everything else (torch, Triton, these packages)
in the environment that runs this: so it takes seconds and a few MB. ``environments.py`` makes those of the pairs that
are always tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from releases import ALWAYS
from releases import Pair

FOLDER = Path(sys.prefix) / "compat"
"""Where the environments are: with the one that they see."""

# Later directories of sys.path lose: what is installed in the new environment hides its namesake.
_SEE_PARENT = "import site; site.addsitedir({parent!r})\n"


class Environment:
    """The Python of one pair of releases.

    Parameters
    ----------
    pair : Pair
        The releases in it.
    """

    def __init__(self, pair: Pair) -> None:
        self.folder = FOLDER / f"{pair.models}-{pair.inference}"
        self.pair = pair
        self.python = self.folder / "bin" / "python"

    def make(self) -> None:
        """Install the pair, unless that has been done."""
        done = self.folder / "complete"
        wanted = "\n".join(self.pair.requirements)
        if done.exists() and done.read_text() == wanted:
            return
        venv.create(self.folder, clear=True, with_pip=False)
        purelib = sysconfig.get_path("purelib", "venv", {"base": str(self.folder), "platbase": str(self.folder)})
        parent = sysconfig.get_path("purelib")
        (Path(purelib) / "zz_parent.pth").write_text(_SEE_PARENT.format(parent=parent))
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        _run([*command, "--ignore-installed", *self.pair.requirements], timeout=300)
        done.write_text(wanted)

    def run(self, script: Path, *arguments: str, **variables: str) -> str:
        """Run a script in the environment and return what it printed; variables that choose a backend are unset.

        Raises
        ------
        RuntimeError
            If it fails, with the end of its output.
        """
        return run_python(self.python, script, *arguments, **variables)


def run_python(python: Path, script: Path, *arguments: str, **variables: str) -> str:
    """Run a script with a Python; see :meth:`Environment.run`."""
    return _run([str(python), str(script), *arguments], timeout=300, **variables)


def _run(command: Sequence[str], timeout: int, **variables: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANEMOI_")}
    done = subprocess.run(
        command,
        env={"OMP_NUM_THREADS": "1"} | inherited | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    for always in ALWAYS:
        Environment(always).make()
