"""What a router remembers of its own views: the last hour, so that somebody may ask what it saw at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from pdcore.clock import Clock
from pdcore.errors import StoreError
from pdcore.registry.follower import Follower
from pdcore.registry.journal.entries import Written
from pdcore.topology.topology import Stored, Topology, build

KEEP_S: Final = 3600.0
MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class Moment:
    """From ``time_ms`` on, until the next moment, this was the view."""

    time_ms: int
    topology: Topology


class Ring:
    """The views of the last ``keep_s`` seconds, at most ``most``. Topologies share what did not change."""

    def __init__(self, *, keep_s: float = KEEP_S, most: int = MOST) -> None:
        self._keep_ms = round(keep_s * 1000)
        self._moments: deque[Moment] = deque(maxlen=most)

    def note(self, topology: Topology, time_ms: int) -> None:
        """``topology`` is the view from now on; a clock that went back is not believed."""
        if self._moments:
            time_ms = max(time_ms, self._moments[-1].time_ms)
        bare = replace(topology)  # without what its readers made of it meanwhile
        self._moments.append(Moment(time_ms, bare))
        self._drop(time_ms - self._keep_ms)

    def at(self, time_ms: int) -> Moment | None:
        """What the view was then; None when that is too long ago."""
        after = bisect_right(self._moments, time_ms, key=lambda moment: moment.time_ms)
        return self._moments[after - 1] if after else None

    @property
    def oldest_ms(self) -> int | None:
        """The first time :meth:`at` knows."""
        return self._moments[0].time_ms if self._moments else None

    def _drop(self, before_ms: int) -> None:
        while len(self._moments) > 1 and self._moments[1].time_ms <= before_ms:
            self._moments.popleft()


@contextmanager
def remembering(follower: Follower, ring: Ring, clock: Clock) -> Iterator[None]:
    """Every view of ``follower`` goes into ``ring`` while the block lasts."""

    def note(topology: Topology) -> None:
        ring.note(topology, round(clock.wall() * 1000))

    unsubscribe = follower.subscribe(lambda _, topology: note(topology))
    if follower.synced:
        note(follower.topology)
    try:
        yield
    finally:
        unsubscribe()


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A ring's answer to "what was the view at a time": nothing but ``oldest_ms`` when it does not know."""

    oldest_ms: int | None
    time_ms: int | None = None
    revision: int = 0
    keys: tuple[Written, ...] = ()

    @property
    def topology(self) -> Topology:
        """The view it tells of."""
        return build({one.key: Stored(one.raw or b"", one.mod_revision) for one in self.keys}, self.revision)


def remembered(ring: Ring, time_ms: int) -> bytes:
    """The answer as JSON."""
    moment = ring.at(time_ms)
    if moment is None:
        return msgspec.json.encode(Remembered(oldest_ms=ring.oldest_ms))
    keys = sorted(moment.topology.keys.items())
    return msgspec.json.encode(
        Remembered(
            oldest_ms=ring.oldest_ms,
            time_ms=moment.time_ms,
            revision=moment.topology.revision,
            keys=tuple(Written.of(key, stored.value, stored.mod_revision) for key, stored in keys),
        )
    )


def read_remembered(body: bytes) -> Remembered:
    """What another process answered; StoreError when it is no such answer."""
    try:
        return msgspec.json.decode(body, type=Remembered)
    except msgspec.MsgspecError as wrong:
        raise StoreError(f"no answer about the past: {wrong}") from wrong
