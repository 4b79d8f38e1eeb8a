"""Seats: the places of a group's instances of one role, numbered from 0. Each has one, and leaves it to somebody else.

Routers send a conversation to a seat, so whoever comes in the place of one that went inherits what lived there.
``side/seats/{group}/{role}/{n}`` holds the id of the instance in it, under the lease of its registration, or ``left ID``
once that one has left or died. So a number that is missing below others is that of one that vanished with its lease.
There are never more numbers than there were instances at once. A seat is no promise: who gets none registers without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.errors import LeaseGone, StoreError
from pdcore.registry.desired import Fence, Wanted
from pdcore.registry.lease import Jitter
from pdcore.registry.registrar_messages import Want
from pdcore.registry.store import Absent, Condition, LeaseId, ModRevisionIs, Put, Store, Stored, ValueIs
from pdcore.topology import codec
from pdcore.topology.records import SEAT, InstanceRecord

log = telemetry.logger(__name__)

MAX_TRIES: Final = 10
FIRST_PAUSE_S: Final = 0.002
"""Doubled with each seat that somebody else was quicker to take."""
MAX_FAILURES: Final = 3
"""Calls to the store that failed in a row; the registration takes them like any other until then."""
LEFT: Final = b"left "
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,8}")


def choose(known: Mapping[int, Stored], instance_id: str, former: int | None) -> int:
    """The seat to take: our own if nobody else has it, which an earlier start holds, or is the ``former`` one, or was left;
    else that of the one that most probably is replaced, which has vanished, or was the last to leave; else a new one.
    """
    own = [number for number, stored in known.items() if stored.value == instance_id.encode()]
    if own:
        return _newest(known, own)
    left = [number for number, stored in known.items() if stored.value.startswith(LEFT)]
    if former is not None and (former not in known or former in left):
        return former
    own = [number for number in left if known[number].value == LEFT + instance_id.encode()]
    if own:
        return _newest(known, own)
    vanished = next((number for number in range(max(known, default=0)) if number not in known), None)
    if vanished is not None:
        return vanished
    return _newest(known, left) if left else len(known)


def _newest(known: Mapping[int, Stored], numbers: Sequence[int]) -> int:
    return max(numbers, key=lambda number: known[number].mod_revision)


def numbered(entries: Mapping[str, Stored], prefix: str) -> dict[int, Stored]:
    """Every seat by its number; keys that are no seats are left out."""
    names = {key.removeprefix(prefix): stored for key, stored in entries.items()}
    return {int(name): stored for name, stored in names.items() if _NUMBER.fullmatch(name)}


class Seat:
    """The seat of one incarnation, kept for as long as it registers. It is looked for no longer than ``patience_s``.

    Mutable: ``number`` (None without one), ``_key`` and ``_lease`` (of the seat that is held; both None while none is),
    ``_without`` (the lease under which it goes without), ``_failures``.
    """

    def __init__(
        self, fence: Fence, store: Store, *, patience_s: float, clock: Clock, jitter: Jitter
    ) -> None:
        self._fence = fence
        self._store = store
        self._patience_s = patience_s
        self._clock = clock
        self._jitter = jitter
        self.number: int | None = None
        self._key: str | None = None
        self._lease: LeaseId | None = None
        self._without: LeaseId | None = None
        self._failures = 0

    @property
    def held(self) -> tuple[Condition, ...]:
        """What holds while the seat is this instance's; nothing is asked for while it has none."""
        return () if self._key is None else (ValueIs(self._key, self._fence.instance_id.encode()),)

    def marked(self, want: Want) -> Want:
        """``want`` with the seat in the instance's record."""
        record = None if want.instance is None else self._record(want.instance.encode())
        if self.number is None or record is None:
            return want
        record = record._replace(extra={**record.extra, SEAT: self.number})
        return msgspec.structs.replace(want, instance=codec.encode(record).decode())

    async def hold(self, wanted: Wanted, lease: LeaseId) -> None:
        """Have a seat under ``lease`` if ``wanted`` has the instance's record and a seat can be had.

        After a lost lease it is the same one unless somebody has it. Trouble is the caller's only the first few times:
        StoreError, LeaseGone.
        """
        value = wanted.entries.get(self._fence.instance_key)
        record = None if value is None else self._record(value)
        if record is None or self._without == lease:
            return
        try:
            if not await self._stands(lease):
                await self._take(self._fence.keyspace.seats(record.group, record.role), lease)
            self._failures = 0
        except LeaseGone:
            raise
        except StoreError as trouble:
            self._failures += 1
            if self._failures < MAX_FAILURES:
                raise
            self._go_without(lease, str(trouble))

    async def leave(self) -> None:
        """Free the seat for good. It is remembered whose it was; without success it goes with its lease, unexplained."""
        own = self._fence.instance_id.encode()
        if self._key is None:
            return
        try:
            await self._store.commit((self._fence.claimed, *self.held), (Put(self._key, LEFT + own),))
        except StoreError as trouble:
            log.info("seat left to expire", seat=self.number, reason=str(trouble))

    async def _stands(self, lease: LeaseId) -> bool:
        if self._key is None or self._lease != lease:
            return False
        stored = await self._store.get(self._key)
        return stored is not None and stored.lease == lease

    async def _take(self, prefix: str, lease: LeaseId) -> None:
        until = self._clock.now() + self._patience_s
        for tries in range(MAX_TRIES):
            known = numbered((await self._store.list(prefix)).entries, prefix)
            number = choose(known, self._fence.instance_id, self.number)
            key, found = f"{prefix}{number}", known.get(number)
            unchanged = Absent(key) if found is None else ModRevisionIs(key, found.mod_revision)
            put = Put(key, self._fence.instance_id.encode(), lease)
            if (await self._store.commit((self._fence.claimed, unchanged), (put,))).succeeded:
                self.number, self._key, self._lease = number, key, lease
                return
            await self._clock.sleep(self._jitter() * FIRST_PAUSE_S * 2**tries)
            if self._clock.now() >= until:
                break
        self._go_without(lease, "others were quicker each time")

    def _go_without(self, lease: LeaseId, why: str) -> None:
        """The number in the record, if it has had one, stays: that one may be shared."""
        log.warning("no seat was to be had", seat=self.number, reason=why)
        self._key, self._lease, self._without, self._failures = None, None, lease, 0

    def _record(self, value: bytes) -> InstanceRecord | None:
        read = codec.decode(self._fence.instance_key, value)
        return read if isinstance(read, InstanceRecord) else None
