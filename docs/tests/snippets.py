# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""The code blocks of README.md, CONTRIBUTING.md and the documentation."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_MARKDOWN = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The directive, its options, and all lines that are blank or indented deeper.
_DIRECTIVE = re.compile(
    r"^(?P<indent> *)\.\. (?:code-block|code|sourcecode):: *(?P<language>\w+)\n"
    r"(?P<body>(?:(?P=indent) +\S.*\n|[ ]*\n)+)",
    re.MULTILINE,
)
_SHELLS = ("bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Snippet:
    """One code block."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(REPOSITORY)}:{self.line}"


def documents() -> list[Path]:
    """Return README.md, CONTRIBUTING.md, the README of each package and the pages of the documentation."""
    texts = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(REPOSITORY.glob("[a-z]*/README.md"))]
    return [*texts, *sorted((REPOSITORY / "docs").glob("*.rst"))]


def snippets(document: Path) -> list[Snippet]:
    """Return the code blocks of a document that name their language."""
    text = document.read_text()
    if document.suffix == ".md":
        found = [(match.start(), match[1], match[2]) for match in _MARKDOWN.finditer(text)]
    else:
        found = [(match.start(), match["language"], _content(match["body"])) for match in _DIRECTIVE.finditer(text)]
    return [Snippet(document, text.count("\n", 0, start) + 1, language, content) for start, language, content in found]


def _content(body: str) -> str:
    lines = textwrap.dedent(body).splitlines()
    while lines and (not lines[0].strip() or re.match(r":[\w-]+:", lines[0])):
        lines.pop(0)
    return "\n".join(lines).rstrip() + "\n"


def commands(document: Path) -> list[str]:
    """Return the commands of a document's shell blocks, in their order.

    Continued lines are joined, and those with ``&&`` taken apart.
    In a block of language ``console``, commands begin with ``$`` and the other lines are output.
    """
    found = []
    for snippet in snippets(document):
        if snippet.language not in _SHELLS:
            continue
        for line in re.sub(r"\\\n\s*", "", snippet.text).splitlines():
            if snippet.language == "console":
                if line.startswith("$ "):
                    found.append(line.removeprefix("$ ").strip())
            elif line.strip() and not line.startswith("#"):
                found += [command.strip() for command in line.split("&&")]
    return found
