"""API keys: kept as hashes, found by hash. Pure.

A key file has one key per line: the SHA-256 of the key in hex, and a name for the log. Lines beginning with ``#`` are
for people. No message repeats what a line holds, since somebody may have written the key itself there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pdcore.bearer import hash_of
from pdcore.config.setting import name

MOST_KEYS: Final = 10_000
_LINE: Final = re.compile(r"([0-9a-f]{64})\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """Names by the hashes of their keys."""

    names: Mapping[bytes, str] = field(repr=False)

    @classmethod
    def read(cls, text: str) -> Self:
        """The keys of a file; raises ValueError with the number of the line that is wrong."""
        names: dict[bytes, str] = {}
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            if not line or line.startswith("#"):
                continue
            hashed, owner = _entry(number, line)
            if hashed in names:
                raise ValueError(f"line {number} repeats a key")
            names[hashed] = owner
        if not 0 < len(names) <= MOST_KEYS:
            raise ValueError(f"holds {len(names)} keys, must be 1 to {MOST_KEYS}")
        return cls(names)

    def who(self, sent: bytes) -> str | None:
        """Whose key ``sent`` is; None for nobody's.

        Takes as long for a wrong key as for a right one: what is looked up is a hash, and how far it agrees with a
        known one says nothing about the key that nobody can turn back.
        """
        return self.names.get(hash_of(sent))


def _entry(number: int, line: str) -> tuple[bytes, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"line {number} is not the SHA-256 of a key in hex and a name")
    try:
        return bytes.fromhex(found[1]), name(found[2])
    except ValueError:
        raise ValueError(f"line {number}: the name must be 1 to 128 of A-Z a-z 0-9 . - _ :") from None
