# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Directive ``.. backend-table::``: what each transformer backend says of itself in its class attributes."""

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from anemoi.plugins.attention.models.attention_backends import TransformerBackend
from anemoi.plugins.attention.models.attention_backends import transformer_backends

HEADER = ("name", "also accepted", "dtypes", "largest head_dim", "softcap", "ALiBi", "dropout")


def row(backend: TransformerBackend) -> tuple[str, ...]:
    """Return the cells of one backend."""
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in backend.dtypes)
    options = (backend.supports_softcap, backend.supports_alibi, backend.supports_dropout)
    return (
        f"``{backend.name}``",
        ", ".join(f"``{alias}``" for alias in backend.aliases),
        dtypes,
        str(backend.max_head_dim or "any"),
        *("yes" if offered else "no" for offered in options),
    )


class BackendTable(Directive):
    """A table with one row a backend."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        lines = [".. list-table::", "   :header-rows: 1", ""]
        for cells in (HEADER, *map(row, transformer_backends().values())):
            lines += [f"   {'*' if index == 0 else ' '} - {cell}" for index, cell in enumerate(cells)]
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, container)
        return container.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("backend-table", BackendTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
