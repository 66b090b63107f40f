# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Backends of the transformer layers, one module each."""

from typing import Any

from anemoi.utils.registry import Registry

transformer_backend_registry: Registry[Any] = Registry(__name__)
