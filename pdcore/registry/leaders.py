"""How the parents of one instance find their leader: a word of its at ``side/leaders/{instance_id}``.

The leader keeps it there under its claim and on a lease of its own for as long as it lives, so that what is read was
said by the newest start of the instance, at most one TTL ago.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.errors import LeaseGone, StoreError
from pdcore.registry.desired import Fence
from pdcore.registry.lease import HeldLease, retry_after_s
from pdcore.registry.store import Put, Store
from pdcore.topology.keys import Keyspace

LEAVE_S: Final = 3.0
MAX_WORD_BYTES: Final = 4096

log = telemetry.logger(__name__)


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


class Announcement:
    """Keeps a leader's word standing; run :meth:`keep` as a task, and :meth:`withdraw` at the end."""

    def __init__(self, store: Store, fence: Fence, word: LeaderWord, *, ttl_s: int, clock: Clock) -> None:
        self._store = store
        self._fence = fence
        self._key = fence.keyspace.leader(fence.instance_id)
        self._value = encode(word)
        self._lease = HeldLease(store, ttl_s, clock=clock, jitter=random.random)
        self._clock = clock

    async def keep(self) -> None:
        """Until cancelled, or until another start holds the claim."""
        failures = 0
        while True:
            try:
                if not await self._step():
                    return
                failures = 0
                await self._clock.sleep(max(0.0, self._lease.due - self._clock.now()))
            except LeaseGone:
                self._lease.forget()
            except StoreError as error:
                failures += 1
                log.debug("leader's word does not stand yet", reason=str(error))
                await self._clock.sleep(retry_after_s(failures, random.random()))

    async def _step(self) -> bool:
        """Renew the lease and see that the key is right; False when the claim is another's."""
        if self._lease.is_due(self._clock.now()):
            await self._lease.renew()
        lease = await self._lease.ensure()
        stored = await self._store.get(self._key)
        if stored is not None and stored.value == self._value and stored.lease == lease:
            return True
        committed = await self._store.commit((self._fence.claimed,), (Put(self._key, self._value, lease),))
        return committed.succeeded

    async def withdraw(self) -> None:
        """The word goes with its lease, now or when that ends."""
        if self._lease.id is None:
            return
        try:
            await self._store.revoke(self._lease.id)
        except StoreError as error:
            log.info("leader's word left to expire", reason=str(error))
