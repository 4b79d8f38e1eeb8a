"""How the parents of one instance find their leader: a word of its at ``side/leaders/{instance_id}``.

The leader keeps it there under its claim and on a lease of its own for as long as it lives, so that what is read was
said by the newest start of the instance, at most one TTL ago.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pdcore.clock import Clock
from pdcore.registry.desired import Fence
from pdcore.registry.standing_word import StandingWord
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

LEAVE_S: Final = 3.0
MAX_WORD_BYTES: Final = 4096


class LeaderWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader's other machines must know. ``url`` is its HTTP address; the others are ZMQ's and torch's.

    ``shape`` says the sizes and the model, which every machine of an instance must be started with alike.
    """

    incarnation: str
    url: str
    parents: str
    dispatch: str
    rendezvous: str
    shape: str


class MalformedWord(ValueError):
    """What stands there is no leader's word."""


def encode(word: LeaderWord) -> bytes:
    """As JSON."""
    return msgspec.json.encode(word)


def read(value: bytes) -> LeaderWord:
    """The word; :class:`MalformedWord` for anything else."""
    try:
        if len(value) > MAX_WORD_BYTES:
            raise MalformedWord(f"a leader's word of {len(value)} bytes")
        return msgspec.json.decode(value, type=LeaderWord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise MalformedWord(f"no leader's word: {wrong}") from wrong


async def find(store: Store, keyspace: Keyspace, instance_id: str) -> LeaderWord | None:
    """The word of the leader that holds the claim now; None while there is none. StoreError, MalformedWord."""
    stored = await store.get(keyspace.leader(instance_id))
    if stored is None:
        return None
    word = read(stored.value)
    claim = await store.get(keyspace.claim(instance_id))
    return word if claim is not None and claim.value == word.incarnation.encode() else None


def announcement(store: Store, fence: Fence, word: LeaderWord, *, ttl_s: int, clock: Clock) -> StandingWord:
    """Keeps a leader's word standing until another start holds the claim."""
    key = fence.keyspace.leader(fence.instance_id)
    return StandingWord(store, key, encode(word), ttl_s=ttl_s, clock=clock, given=(fence.claimed,))
