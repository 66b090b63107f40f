# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Checkpoints: what attention they hold, loading them anywhere, and giving them another backend."""

from .archive import is_archive
from .archive import require_checkpoint
from .layers import SavedLayer
from .layers import read_layers
from .placeholders import load_checkpoint
from .placeholders import require_complete

__all__ = ["SavedLayer", "is_archive", "load_checkpoint", "read_layers", "require_checkpoint", "require_complete"]
