"""What this router sees of its instances as it uses them, and what follows for the next requests.

Legs report here how they went. From that the breakers, the retry budget and the poison rule are fed, doubts are put
to the fleet's overlay, and what the overlay finds out comes back. The rules themselves are pure modules; here they only
meet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple

from msgspec import Struct

from pdcore.clock import Clock
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import Note
from pdcore.registry.overlay.view import View
from pdcore.router.api import ClientRequest
from pdcore.router.breaker import Breakers
from pdcore.router.exchange import Leg
from pdcore.router.fate import Fate, fate
from pdcore.router.kv_path import KvPath
from pdcore.router.leg_failure import LegFailure
from pdcore.router.load import Ledger
from pdcore.router.pick import InstanceKey, Pick
from pdcore.router.poison import Poison, fingerprint
from pdcore.router.retry_budget import RetryBudget
from pdcore.router.want import key_of
from pdcore.telemetry import logger
from pdcore.topology.instance import Instance

CONNECTION_FAILURES: Final = frozenset({"unreachable", "connect_expired", "broken"})
KNOWN_WITHIN_S: Final = 1.0
"""How long a request waits to learn whether its instance died."""
BELIEVED_S: Final = 5.0
"""How long after a request broke a death is still put down to it."""
MOST_BROKEN: Final = 4096
LIVES: Final = frozenset({"kept", "confirmed", "answers again"})
LOST: Final = frozenset({"gone", "frozen"})

_log = logger(__name__)


class _Broken(NamedTuple):
    """A request that broke at an instance of which nobody knows yet whether it died."""

    key: InstanceKey
    request: bytes
    at: float


class Witness:
    """Sees every leg of this router. Mutable: what its parts remember, and ``_broken``, the newest last."""

    def __init__(self, *, fleet: Fleet, ledger: Ledger, clock: Clock) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._clock = clock
        self._kv_path = KvPath()
        self._broken: deque[_Broken] = deque(maxlen=MOST_BROKEN)
        self.breakers = Breakers(_tell)
        self.retries = RetryBudget()
        self.poison = Poison()

    def came(self, request: ClientRequest) -> float:
        """A request came; for how many seconds it is to be refused, 0 unless it is known to kill."""
        now = self._clock.now()
        self.retries.came(now)
        return self.poison.refuse_for_s(fingerprint(request), now) if self.poison else 0.0

    def answered(self, request: ClientRequest) -> None:
        """The client has its whole answer."""
        if self.poison:
            self.poison.answered(fingerprint(request))

    def view(self) -> View:
        """The fleet's view in which whoever has an open breaker is a suspect too."""
        view = self._fleet.view
        out = self.breakers.out(self._clock.now())
        if not out:
            return view
        instances = view.topology.instances
        why = {
            name: reason
            for (name, incarnation), reason in out.items()
            if name in instances and _is(instances[name], incarnation)
        }
        return replace(view, suspects=view.suspects | frozenset(why), why={**why, **view.why})

    def over(self, pick: Pick, request: ClientRequest) -> Sighting:
        """Legs of ``request`` go to the instances of ``pick``: where what becomes of them is to be told."""
        if self.breakers.open_now:
            now = self._clock.now()
            for one in pick.instances:
                self.breakers.taken(key_of(one), now)
        return Sighting(self, pick, request)

    def good(self, leg: Leg, pick: Pick) -> None:
        """Prefill handed over, or decode's first byte came."""
        now, decode = self._clock.now(), key_of(pick.at("decode"))
        if leg == "prefill":
            self.breakers.good(key_of(pick.at("prefill")), now)
            return
        self.breakers.good(decode, now)
        if pick.prefill is not None:
            self._kv_path.worked(key_of(pick.at("prefill")), decode, now)

    def failed(self, failure: LegFailure, pick: Pick, request: ClientRequest) -> None:
        """A leg of ``pick`` failed; called while it is still counted as open."""
        now, key = self._clock.now(), key_of(pick.at(failure.leg))
        if failure.event in CONNECTION_FAILURES or failure.event == "frozen":
            self.retries.lost(key, self._ledger.in_flight(key[0]), now)
        if failure.blames_the_kv_path and pick.prefill is not None:
            at_fault = self._kv_path.failed(key_of(pick.at("prefill")), key, now)
            if at_fault is not None:
                self.breakers.blame(at_fault, "soft", now)
        else:
            self.breakers.bad(key, failure.event, now)
        if failure.event in CONNECTION_FAILURES:
            self._fleet.accuse(key, "connection")
        if (leg := failure.maybe_died) is not None:
            self._may_have_died(key_of(pick.at(leg)), failure, request, now)

    async def has_died(self, key: InstanceKey) -> bool:
        """Whether ``key`` is no more; False also when that does not turn out soon."""
        since = self._clock.now()
        try:
            await self._fleet.wait_until(lambda _: self._fate(key, since) is not None, KNOWN_WITHIN_S)
        except TimeoutError:
            return False
        return self._fate(key, since) in ("died", "left")

    def on_note(self, note: Note) -> None:
        """What the overlay found out about an instance."""
        if note.kind in LIVES:
            self.breakers.alive(note.key)
        if note.kind in LOST:
            self.retries.lost(note.key, self._ledger.in_flight(note.instance_id), self._clock.now())

    def on_change(self) -> None:
        """The view has changed: deaths that are known now are put down to the requests that broke there."""
        if not self._broken:
            return
        now = self._clock.now()
        undecided = deque[_Broken](maxlen=MOST_BROKEN)
        for broken in self._broken:
            became = self._fate(broken.key, broken.at)
            if became == "died":
                self.poison.died(broken.key, broken.request, now)
            elif became is None and now < broken.at + BELIEVED_S:
                undecided.append(broken)
        self._broken = undecided

    def forget(self) -> None:
        """Instances have left the view: what was remembered of their incarnations goes."""
        instances = self._fleet.topology.instances
        self.breakers.forget(lambda key: key[0] in instances and _is(instances[key[0]], key[1]))

    def _may_have_died(
        self, key: InstanceKey, failure: LegFailure, request: ClientRequest, now: float
    ) -> None:
        if failure.event == "failed":
            self._fleet.accuse(key, "error")
        self._broken.append(_Broken(key, fingerprint(request), now))
        self.on_change()

    def _fate(self, key: InstanceKey, since: float) -> Fate | None:
        return fate(self._fleet.topology, self._fleet.overlay, key, since)


class Sighting(Struct, frozen=True):
    """One attempt's line to its witness."""

    witness: Witness
    pick: Pick
    request: ClientRequest

    def good(self, leg: Leg) -> None:
        """Prefill handed over, or decode's first byte came."""
        self.witness.good(leg, self.pick)

    def failed(self, failure: LegFailure) -> None:
        """A leg failed; to be called while it is still counted as open."""
        self.witness.failed(failure, self.pick, self.request)


def _is(instance: Instance, incarnation: str) -> bool:
    return instance.incarnation == incarnation


def _tell(key: InstanceKey, why: str | None) -> None:
    name, incarnation = key
    if why is None:
        _log.info("breaker closed", instance_id=name, incarnation=incarnation)
    else:
        _log.warning("breaker opened", instance_id=name, incarnation=incarnation, reason=why)
