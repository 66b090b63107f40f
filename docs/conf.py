# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Configuration of Sphinx. It needs no network: no inventories of other projects are fetched."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Anemoi plugins: attention"
author = "Anemoi contributors"
copyright = "2026, Anemoi contributors"  # noqa: A001
release = version_of("anemoi-plugins-attention-models")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "backend_table",
    "command_output",
]
exclude_patterns = ["_build", "tests"]

html_theme = "sphinx_rtd_theme"
html_static_path = ["_static"]
html_show_sourcelink = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_numpy_docstring = True
