"""Slots: who runs which member, ``side/members/{group}/{generation}/{role}/{number}``. Pure.

A slot hangs on its supervisor's lease. A supervisor starts a member only while the slot is its own, so no member runs
twice, however many supervisors there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from pdcore.group.control.members import Member, member_at
from pdcore.topology.keys import Keyspace

MAX_WORD_BYTES: Final = 8192
SlotPhase = Literal["held", "running", "waiting", "stopping"]


class SlotWord(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor says of the member it holds. ``failed``: it cannot start, or crashes again and again.

    ``exits`` counts ends that nobody asked for, in a row. ``why`` is the line of its log that says the cause. ``url``: where
    a member answers that does not register itself, once it does.
    """

    v: int = 1
    supervisor: str
    phase: SlotPhase = "held"
    pid: int | None = None
    exits: int = 0
    failed: bool = False
    url: str = ""
    why: str = ""


_DECODER: Final = msgspec.json.Decoder(SlotWord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot as stored. ``word`` is None when nobody can read what stands there: still, it is held."""

    word: SlotWord | None
    mod_revision: int
    mine: bool = False

    @property
    def failed(self) -> bool:
        return self.word is not None and self.word.failed


def encode(word: SlotWord) -> bytes:
    """The value to store."""
    return msgspec.json.encode(word)


def read(value: bytes) -> SlotWord | None:
    """The word, None for anything else."""
    if len(value) > MAX_WORD_BYTES:
        return None
    try:
        return _DECODER.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def prefix(keyspace: Keyspace, group: str) -> str:
    """Where the slots of ``group`` are."""
    return keyspace.members(group)


def key(keyspace: Keyspace, group: str, member: Member) -> str:
    """The slot of ``member``."""
    return prefix(keyspace, group) + member.path


def member_of(keyspace: Keyspace, group: str, name: str) -> Member | None:
    """Whose slot the key ``name`` is."""
    return member_at(name.removeprefix(prefix(keyspace, group)))
