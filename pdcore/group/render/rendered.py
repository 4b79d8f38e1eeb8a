"""What a member is started with, and where every part of it comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdcore.group.effective import Source
from pdcore.group.modes.placeholders import Unresolved, is_settled_later
from pdcore.topology.records import Json

NoteCode = Literal[
    "descriptor_is_users",
    "descriptor_replaced",
    "env_overridden",
    "cache_not_injected",
    "router_is_users",
    "not_passed_on",
]


@dataclass(frozen=True, slots=True)
class Word:
    """One value: of the command line, or of a variable."""

    text: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFile:
    """A file that must be there: written with ``content`` before the start, or the machine's own, read only."""

    path: str
    content: str | None
    why: str
    source: Source = "mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortUse:
    """Contiguous ports. ``base`` is None until they are assigned, ``count`` where nobody can tell how many are needed."""

    name: str
    base: int | None
    count: int | None
    source: Source = "derived"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know and that stops nothing."""

    code: NoteCode
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why it cannot be started, a sentence; ``name`` is the placeholder that nobody could say, if that is why."""

    message: str
    name: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def is_settled_later(self) -> bool:
        """Whether it is only that the member has no place yet."""
        return self.name != "" and is_settled_later(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One member. With any of the ``problems`` it cannot be started."""

    role: str
    argv: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    files: tuple[RenderedFile, ...] = ()
    ports: tuple[PortUse, ...] = ()
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The command line; raises :class:`Unresolved` when it cannot be started."""
        if self.problems:
            raise Unresolved(*(f"{self.role}: {problem}" for problem in self.problems))
        return tuple(word.text for word in self.argv)

    @property
    def environment(self) -> dict[str, str]:
        """The variables."""
        return {name: word.text for name, word in self.env.items()}

    def document(self) -> dict[str, Json]:
        """The same for programs."""
        return {
            "role": self.role,
            "argv": [{"value": word.text, "source": word.source} for word in self.argv],
            "env": {name: {"value": word.text, "source": word.source} for name, word in self.env.items()},
            "files": [
                {"path": one.path, "content": one.content, "why": one.why, "source": one.source}
                for one in self.files
            ],
            "ports": [
                {"name": one.name, "base": one.base, "count": one.count, "source": one.source}
                for one in self.ports
            ],
            "notes": [{"code": one.code, "message": one.message} for one in self.notes],
            "problems": [
                {"message": one.message, "placeholder": one.name, "settled_later": one.is_settled_later}
                for one in self.problems
            ],
        }


def words(texts: Iterable[str], source: Source) -> tuple[Word, ...]:
    """``texts`` that all come from ``source``."""
    return tuple(Word(text, source) for text in texts)
