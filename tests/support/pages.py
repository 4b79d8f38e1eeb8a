"""Reading the project's documents: their sections, tables and commands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
_HEADING: Final = re.compile(r"^#{2,3} +(.*)$", re.MULTILINE)
_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<kind>[a-z]*)\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_ROW: Final = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<type>.+?) \| (?P<meaning>.+?) \|$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Each heading of the second and third level with what stands below it."""
    parts = _HEADING.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fenced(text: str, kind: str) -> list[str]:
    """The code of every fence of one kind, without its indentation."""
    return [textwrap.dedent(found["code"]) for found in _FENCED.finditer(text) if found["kind"] == kind]


def fields(text: str) -> dict[str, str]:
    """The rows of a table of fields: name to type and meaning."""
    return {row["name"]: f"{row['type']} | {row['meaning']}" for row in _ROW.finditer(text)}
