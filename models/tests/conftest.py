# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Set up what the tests of the models package share."""

import os
import sys
from pathlib import Path

import torch

# Helpers such as policy.py: with --import-mode=importlib no test folder is on the path by itself.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "triton" / "attention")]

if not torch.cuda.is_available():
    # Before Triton is imported: without a GPU its kernels can only be interpreted.
    os.environ.setdefault("TRITON_INTERPRET", "1")
