"""A transaction as ``commit.lua`` takes it, and its answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pdcore.errors import LeaseGone, StoreRefused
from pdcore.registry.redis.entries import NUL
from pdcore.registry.store import Absent, Committed, Condition, ModRevisionIs, Put, ValueIs, Write

MAX_BYTES: Final = 3 << 19
"""Most bytes of one transaction, as etcd has it."""

Argument = bytes | str | int


def transaction_arguments(
    conditions: tuple[Condition, ...], writes: tuple[Write, ...]
) -> tuple[Argument, ...]:
    """What follows the fresh timeline among the script's arguments.

    Raises :class:`StoreRefused` for a key that the stream cannot hold, and for too many bytes.
    """
    arguments = (len(conditions), *_conditions(conditions), *_writes(writes))
    size = sum(len(argument) for argument in arguments if isinstance(argument, str | bytes))
    if size > MAX_BYTES:
        raise StoreRefused(f"a transaction of {size} bytes, more than {MAX_BYTES}")
    if any(NUL in write.key for write in writes):
        raise StoreRefused("a key with a NUL in it")
    return arguments


def _conditions(conditions: tuple[Condition, ...]) -> Iterator[Argument]:
    for condition in conditions:
        match condition:
            case Absent(key):
                yield from ("absent", key, "")
            case ValueIs(key, value):
                yield from ("value", key, value)
            case ModRevisionIs(key, mod_revision):
                yield from ("revision", key, mod_revision)


def _writes(writes: tuple[Write, ...]) -> Iterator[Argument]:
    for write in writes:
        if isinstance(write, Put):
            yield from (write.lease or 0, write.key, write.value)
        else:
            yield from ("-", write.key, "")


def committed(answer: Any) -> Committed:
    """The answer's meaning. Raises :class:`LeaseGone` when a put named a lease that does not exist."""
    outcome, told = answer
    if outcome == b"gone":
        raise LeaseGone(f"lease {told.decode()} does not exist")
    return Committed(outcome == b"done", int(told))
