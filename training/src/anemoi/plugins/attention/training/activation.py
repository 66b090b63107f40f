# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Put the attention plugins into effect in a training process, at no cost for other processes.

Nothing is imported here: hooks act when anemoi-training or anemoi-models is imported. Other Hydra applications of the
same environment, which load the search-path plugin too, never import torch on our account.
"""

from types import ModuleType

import wrapt

_activated = False


def activate() -> None:
    """Register the hooks; a second call does nothing."""
    global _activated
    if _activated:
        return
    _activated = True
    wrapt.register_post_import_hook(_enable_backends, "anemoi.models")
    wrapt.register_post_import_hook(_check_names, "anemoi.training.schemas.base_schema")


def _enable_backends(module: ModuleType) -> None:
    from anemoi.plugins.attention.models import enable

    enable()


def _check_names(module: ModuleType) -> None:
    from . import name_check

    name_check.install(module.BaseSchema)
