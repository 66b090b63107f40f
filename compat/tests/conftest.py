# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""This is a folder of scripts: its modules are found by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
