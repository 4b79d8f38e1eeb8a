"""The fleet as one process sees it: what it follows, its suspects among it, and the probes that decide about them."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random
from types import TracebackType
from typing import Final, Self

from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.registry.follower import Follower
from pdcore.registry.overlay.disappearing import ROLES, observe, remembered
from pdcore.registry.overlay.prober import ask
from pdcore.registry.overlay.probing import accuse, answered, next_probe_at, start_probes
from pdcore.registry.overlay.suspect import (
    FROZEN_AFTER_S,
    Evidence,
    InstanceKey,
    Note,
    Outcome,
    Overlay,
    Probe,
)
from pdcore.registry.overlay.view import View, view
from pdcore.telemetry import logger
from pdcore.topology.records import Role
from pdcore.topology.shards import ShardedMap
from pdcore.topology.topology import Topology

MAX_PROBES: Final = 32
IDLE_S: Final = 60.0
GOOD_NEWS: Final = frozenset({"kept", "confirmed", "answers again"})

OnNote = Callable[[Note], None]

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatistics:
    """What an operator sees of an overlay: instances shown in doubt, instances known not to answer."""

    suspects: int
    gone: int


class Fleet:
    """Use it inside the follower's ``async with``.

    ``roles`` are the ones that become suspects. ``cached`` is the topology of a file, shown until the follower has
    listed, each of its instances once it has answered. Mutable state: ``_followed`` and ``_overlay``, replaced between
    two awaits; ``_view`` is made of them when somebody looks.
    """

    def __init__(
        self,
        follower: Follower,
        *,
        probe_timeout_s: float,
        frozen_after_s: float = FROZEN_AFTER_S,
        roles: Collection[Role] = ROLES,
        cached: Topology | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._follower = follower
        self._probe_timeout_s = probe_timeout_s
        self._frozen_after_s = frozen_after_s
        self._roles = roles
        self._tls = tls
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._followed = cached or Topology.empty()
        self._listed = cached is None
        self._overlay = Overlay()
        self._view: View | None = None
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._probing = 0
        self._probes: Counter[Outcome] = Counter()
        self._on_change: list[Callable[[], None]] = []
        self._on_note: list[OnNote] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        now = self._clock.now()
        self._overlay = remembered(self._followed, now, self._random)
        async with AsyncExitStack() as stack:
            stack.callback(self._follower.observe(self._on_topology))
            if self._follower.synced:
                self._on_topology(self._follower.topology)
            await stack.enter_async_context(running_beside(self._probe_for_ever()))
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    @property
    def view(self) -> View:
        """What is to be picked from now."""
        if self._view is None:
            base = self._followed
            if not self._listed:
                base = replace(base, instances=ShardedMap())
            self._view = view(self._overlay, base)
        return self._view

    @property
    def topology(self) -> Topology:
        """The followed topology with the suspects that are shown in it."""
        return self.view.topology

    @property
    def overlay(self) -> Overlay:
        """Every suspect."""
        return self._overlay

    def statistics(self) -> FleetStatistics:
        """Counts of this moment."""
        standings = Counter(one.standing for one in self._overlay.suspects.values())
        return FleetStatistics(suspects=standings["doubted"] + standings["kept"], gone=standings["gone"])

    def probes(self, outcome: Outcome) -> int:
        """How many probes ended so."""
        return self._probes[outcome]

    async def wait_until(self, predicate: Callable[[Topology], bool], timeout_s: float) -> Topology:
        """The first complete view, suspects included, for which ``predicate`` holds; TimeoutError when none in time."""
        async with asyncio.timeout(timeout_s):
            while not ((self._follower.synced or not self._listed) and predicate(self.topology)):
                await self._changed.wait()
        return self.topology

    def accuse(self, key: InstanceKey, evidence: Evidence) -> None:
        """A request found no connection to ``key``, or none of its requests hears anything: ask it now."""
        self._become(*accuse(self._overlay, self._followed, key, evidence, self._clock.now()))

    def subscribe(self, on_change: Callable[[], None], on_note: OnNote | None = None) -> Callable[[], None]:
        """Call ``on_change`` after every change of the view, and ``on_note`` with what became of a suspect before that.

        Both are called between two awaits, must return quickly and must not raise. Returns how to unsubscribe.
        """
        self._on_change.append(on_change)
        if on_note is not None:
            self._on_note.append(on_note)

        def unsubscribe() -> None:
            self._on_change.remove(on_change)
            if on_note is not None:
                self._on_note.remove(on_note)

        return unsubscribe

    def _on_topology(self, topology: Topology) -> None:
        old, self._followed, self._listed = self._followed, topology, True
        before, now = self._overlay, self._clock.now()
        self._overlay, notes = observe(before, old, topology, now, self._random, roles=self._roles)
        if self._overlay is not before:
            self._news.set()
        self._tell(notes)

    def _become(self, overlay: Overlay, notes: tuple[Note, ...]) -> None:
        self._overlay = overlay
        self._news.set()
        if notes:
            self._tell(notes)

    def _tell(self, notes: tuple[Note, ...]) -> None:
        """What readers see has changed."""
        self._view = None
        self._changed.set()
        self._changed.clear()
        for note in notes:
            say = _log.info if note.kind in GOOD_NEWS else _log.warning
            say(
                f"instance {note.kind}",
                instance_id=note.instance_id,
                incarnation=note.incarnation,
                reason=note.why,
            )
            for on_note in tuple(self._on_note):
                on_note(note)
        for on_change in tuple(self._on_change):
            on_change()

    async def _probe_for_ever(self) -> None:
        """Start what is due, at most so many at a time, and sleep until the next is or something happens."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                now, free = self._clock.now(), MAX_PROBES - self._probing
                self._overlay, probes = start_probes(self._overlay, now, free)
                for probe in probes:
                    self._probing += 1
                    group.create_task(self._probe(probe))
                await self._sleep(next_probe_at(self._overlay) if self._probing < MAX_PROBES else None)

    async def _sleep(self, until: float | None) -> None:
        pause_s = IDLE_S if until is None else max(0.0, until - self._clock.now())
        try:
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _probe(self, probe: Probe) -> None:
        outcome = await ask(probe, self._probe_timeout_s, self._clock, self._tls)
        self._probing -= 1
        self._probes[outcome] += 1
        self._become(
            *answered(
                self._overlay,
                probe.key,
                outcome,
                self._clock.now(),
                self._random,
                frozen_after_s=self._frozen_after_s,
            )
        )
