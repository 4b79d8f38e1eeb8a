"""YAML as data: a bounded plain document, or one line that says where it is wrong.

Aliases, repeated keys and deep nesting are refused before anything is built: the first can make a small file fill the
memory, and the second hides what somebody wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import yaml

from pdcore.errors import ConfigError

MAX_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 8

Trouble = Literal[
    "missing", "directory", "forbidden", "broken", "too_long", "encoding", "syntax", "alias", "depth", "twice"
]
_BY_ERROR: Final[tuple[tuple[type[OSError], Trouble], ...]] = (
    (FileNotFoundError, "missing"),
    (NotADirectoryError, "missing"),
    (IsADirectoryError, "directory"),
    (PermissionError, "forbidden"),
)


class Unreadable(ConfigError):
    """A file that is no bounded plain YAML; ``trouble`` says in which way."""

    def __init__(self, problem: str, trouble: Trouble) -> None:
        super().__init__(problem)
        self.trouble: Final = trouble


def read_yaml(file: Path, *, named: str = "--config / PDCORE_CONFIG") -> object:
    """The document in ``file``, which ``named`` says who asked for. Unreadable in one line."""
    return parse_yaml(_text(file, named), str(file))


def parse_yaml(text: str, file: str) -> object:
    """The document that ``text`` is; ``file`` names it in what is raised, which is Unreadable."""
    try:
        for problem, trouble in _problems(text):
            raise Unreadable(f"{file}: {problem}", trouble)
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as wrong:
        said = " ".join(filter(None, (wrong.context, wrong.problem)))
        raise Unreadable(f"{file}: {_place(wrong.problem_mark)}{said}", "syntax") from None
    except (yaml.YAMLError, ValueError) as wrong:  # ValueError: no such date, a number of thousands of digits
        raise Unreadable(f"{file}: {' '.join(str(wrong).split())}", "syntax") from None


def _text(file: Path, named: str) -> str:
    try:
        with file.open("rb") as opened:
            read = opened.read(MAX_BYTES + 1)
        if len(read) > MAX_BYTES:
            raise Unreadable(f"{file}: longer than {MAX_BYTES} bytes", "too_long")
        return read.decode("utf-8")
    except OSError as wrong:
        trouble: Trouble = next((one for kind, one in _BY_ERROR if isinstance(wrong, kind)), "broken")
        raise Unreadable(f"{named}: cannot read {file}: {wrong.strerror}", trouble) from None
    except UnicodeDecodeError as wrong:
        raise Unreadable(f"{file}: is not UTF-8: {wrong.reason} at byte {wrong.start}", "encoding") from None


def _problems(text: str) -> list[tuple[str, Trouble]]:
    """What must not be built, from the stream of events, which needs no memory and no recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            return [(f"{_place(event.start_mark)}aliases (*{event.anchor}) are not allowed", "alias")]
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return [(f"{_place(event.start_mark)}nested deeper than {MAX_DEPTH}", "depth")]
    return [(problem, "twice") for problem in _repeated(yaml.compose(text, Loader=yaml.SafeLoader))]


def _repeated(node: Any) -> list[str]:
    """Every key that stands twice in one mapping."""
    if isinstance(node, yaml.SequenceNode):
        return [problem for item in node.value for problem in _repeated(item)]
    if not isinstance(node, yaml.MappingNode):
        return []
    seen: set[object] = set()
    found = []
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            found.append(f"{_place(key.start_mark)}the key {key.value!r} stands there twice")
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        found += _repeated(value)
    return found


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
