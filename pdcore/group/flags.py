"""An engine's flags as people write them: ``--flag=value``, two items, or one item with a blank. Pure.

The last of several counts; case, and whether words are joined by hyphens or underscores, make no difference to a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TENSOR_PARALLEL = ("tensor-parallel-size", "tp", "tp-size")
DATA_PARALLEL = ("data-parallel-size", "dp", "dp-size")
PIPELINE_PARALLEL = ("pipeline-parallel-size", "pp", "pp-size")
KV_TRANSFER_CONFIG = ("kv-transfer-config",)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``name`` is lower case with hyphens; ``value`` is None where nothing follows it."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of one command line, in order."""

    flags: tuple[Flag, ...]

    @classmethod
    def of(cls, parameters: Iterable[str] | None) -> Flags:
        """The flags in ``parameters``; words that belong to none are left out."""
        return cls(tuple(_flags(argv_of(parameters or ()))))

    @staticmethod
    def strays(parameters: Iterable[str] | None, *, several: bool) -> tuple[str, ...]:
        """The words that are no flag and belong to none; with ``several`` a flag may have any number of values."""
        words = argv_of(parameters or ())
        found = []
        for index, word in enumerate(words):
            before = words[index - 1] if index else None
            taken = before is not None and _is_flag(before) and "=" not in before
            if not _is_flag(word) and not taken and not (several and index and _may_go_on(words[:index])):
                found.append(word)
        return tuple(found)

    def last(self, names: Sequence[str]) -> Flag | None:
        """The last flag that has one of ``names``."""
        return next((flag for flag in reversed(self.flags) if flag.name in names), None)

    def value(self, names: Sequence[str]) -> str | None:
        """What the last such flag says, without blanks around it; None when there is none or it says nothing."""
        flag = self.last(names)
        return None if flag is None or flag.value is None else flag.value.strip()

    def number(self, names: Sequence[str]) -> int | None:
        """The same as a whole number above 0; None for anything else."""
        value = self.value(names)
        if value is None or not value.isascii() or not value.isdigit() or len(value) > 9:
            return None
        return int(value) or None


def argv_of(parameters: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line: an item that is a flag, a blank and its value becomes two."""
    return tuple(word for item in parameters for word in _split(item))


def _split(item: str) -> tuple[str, ...]:
    head, _, rest = item.strip().partition(" ")
    if not _is_flag(head) or "=" in head or not rest.strip():
        return (item,)
    return head, rest.strip()


def _flags(words: Sequence[str]) -> Iterable[Flag]:
    for index, word in enumerate(words):
        if not _is_flag(word):
            continue
        name, equals, value = word.partition("=")
        if equals:
            yield Flag(_name(name), value)
            continue
        following = words[index + 1] if index + 1 < len(words) else None
        yield Flag(_name(name), None if following is None or _is_flag(following) else following)


def _may_go_on(words: Sequence[str]) -> bool:
    """Whether the last flag of ``words`` takes what follows it, and not what stands behind its ``=``."""
    flag = next((word for word in reversed(words) if _is_flag(word)), "=")
    return "=" not in flag


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word.lstrip("-")[:1].isalpha()


def _name(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")
