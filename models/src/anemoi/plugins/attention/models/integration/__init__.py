# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""How the backends reach the released anemoi-models.

anemoi-models has no registry of attention functions: its layers choose from a dictionary inside
``set_attention_function``. :func:`enable` replaces that method, and the few that go with it, by ones that know the
backends of this package. Only the modules of this folder touch the host's internals, one module a host class.
"""

from .older_layers import ignore_options
from .override import LayerReport
from .override import attention_layers
from .override import override_backends
from .switch import disable
from .switch import enable

__all__ = ["LayerReport", "attention_layers", "disable", "enable", "ignore_options", "override_backends"]
