# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The environment variables, read here and nowhere else, and always when asked (never at import)."""

import os

TRANSFORMER = "transformer"
GRAPH_TRANSFORMER = "graph_transformer"

VARIABLES = {
    TRANSFORMER: "ANEMOI_INFERENCE_TRANSFORMER_ATTENTION_BACKEND",
    GRAPH_TRANSFORMER: "ANEMOI_INFERENCE_GRAPHTRANSFORMER_ATTENTION_BACKEND",
}
"""Variable that overrides the backend, by kind of layer. The names are those of anemoi-models."""


def requested_backend(kind: str) -> str | None:
    """Return the value of the variable for a kind of layer, as it is now.

    Parameters
    ----------
    kind : str
        ``"transformer"`` or ``"graph_transformer"``.

    Returns
    -------
    str or None
        The raw value; None if the variable is not set or empty (anemoi-models takes empty as not set, too).
    """
    return os.environ.get(VARIABLES[kind]) or None
