"""Which instances have lately failed what they were given. Pure: instants are passed in.

Evidence has classes. A connection that does not come about opens the breaker at once; it closes as soon as the
instance is heard of. Soft failures (5xx, a broken or unreadable answer) open it by their share of the last ten
seconds; it then lets one request through per pause, and one good answer closes it. Whatever says "not now", "not me"
or "your fault" is no evidence, nor is a budget that ran out: that says how long it was, not who was slow, and an
engine that says nothing at all is found by its silence.

An open breaker never leaves a request without an instance: who picks looks at it last. Otherwise one bad minute of
every instance would become an outage of the router's own making.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pdcore.router.exchange import Failure
from pdcore.router.pick import InstanceKey
from pdcore.router.window import Window

FEWEST: Final = 5
"""Soft failures that are too few to mean anything, whatever their share."""
SHARE: Final = 0.5
PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
CALM_S: Final = 60.0
"""After so long without opening, the pause is the first one again."""
MOST: Final = 8192

EvidenceClass = Literal["at_once", "soft", "none"]

CLASSES: Final[Mapping[Failure, EvidenceClass]] = {
    "unreachable": "at_once",
    "connect_expired": "at_once",
    "failed": "soft",
    "broken": "soft",
    "garbage": "soft",
    "frozen": "soft",
    "refused": "none",
    "not_now": "none",
    "client_fault": "none",
    "expired": "none",
    "deadline": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open breaker. ``trial_at``: when the next request may try; ``hard``: opened by a failed connection."""

    since: float
    trial_at: float
    pause_s: float
    hard: bool
    why: str


class Breaker:
    """One incarnation's. Mutable: the two counts, ``opened``, and when and for how long it was opened last."""

    __slots__ = ("_bad", "_good", "_last_at", "_last_pause_s", "opened")

    def __init__(self) -> None:
        self._good = Window()
        self._bad = Window()
        self._last_at = -CALM_S
        self._last_pause_s = 0.0
        self.opened: Opened | None = None

    def good(self, now: float) -> None:
        """An answer came. Of an instance whose trial is not due yet it is only counted: it may be an old one."""
        self._good.add(now)
        if self.opened is not None and (self.opened.hard or now >= self.opened.since + self.opened.pause_s):
            self._close()

    def bad(self, evidence: EvidenceClass, now: float) -> None:
        """A leg failed with ``evidence``."""
        if evidence == "none":
            return
        self._bad.add(now)
        if evidence == "at_once":
            self._open(now, hard=True, why="it takes no connections")
        elif self.opened is not None:
            if now >= self.opened.since + self.opened.pause_s:
                self._open(now, hard=False, why=self.opened.why)
        elif (why := self._too_many(now)) is not None:
            self._open(now, hard=False, why=why)

    def alive(self) -> None:
        """It answers when asked for its health: what a failed connection opened is closed."""
        if self.opened is not None and self.opened.hard:
            self._close()

    def is_out(self, now: float) -> bool:
        """Whether it is to be picked last at ``now``."""
        return self.opened is not None and now < self.opened.trial_at

    def taken(self, now: float) -> None:
        """A request goes there. If it is the trial, the next one has to wait for its outcome or another pause."""
        held = self.opened
        if held is not None and now >= held.trial_at:
            self.opened = Opened(
                since=held.since,
                trial_at=now + held.pause_s,
                pause_s=held.pause_s,
                hard=held.hard,
                why=held.why,
            )

    def is_forgettable(self, now: float) -> bool:
        """Whether it says nothing that a new one would not."""
        calm = now - self._last_at >= CALM_S
        return self.opened is None and calm and not self._good.total(now) and not self._bad.total(now)

    def _too_many(self, now: float) -> str | None:
        bad = self._bad.total(now)
        if bad < FEWEST:
            return None
        every = bad + self._good.total(now)
        return f"{bad} of its last {every} answers were failures" if bad >= SHARE * every else None

    def _open(self, now: float, *, hard: bool, why: str) -> None:
        held = self.opened
        if held is not None and now < held.since + held.pause_s:
            return  # of the same time as what opened it
        calm = held is None and now - self._last_at >= CALM_S
        pause_s = PAUSE_S if calm else min(LONGEST_PAUSE_S, 2 * self._last_pause_s)
        self._last_at, self._last_pause_s = now, pause_s
        self.opened = Opened(since=now, trial_at=now + pause_s, pause_s=pause_s, hard=hard, why=why)

    def _close(self) -> None:
        self.opened = None
        self._good, self._bad = Window(), Window()


class Breakers:
    """A breaker per incarnation that was heard of. ``on_change`` is told who opens (with the reason) and who closes."""

    def __init__(self, on_change: Callable[[InstanceKey, str | None], None] = lambda key, why: None) -> None:
        self._on_change = on_change
        self._breakers: dict[InstanceKey, Breaker] = {}
        self._open: set[InstanceKey] = set()

    def good(self, key: InstanceKey, now: float) -> None:
        """An answer of ``key`` came."""
        breaker = self._of(key)
        breaker.good(now)
        if self._open:
            self._note(key, breaker)

    def bad(self, key: InstanceKey, event: Failure, now: float) -> None:
        """A leg at ``key`` failed."""
        evidence = CLASSES[event]
        if evidence != "none":
            self.blame(key, evidence, now)

    def blame(self, key: InstanceKey, evidence: EvidenceClass, now: float) -> None:
        """Evidence against ``key``, whoever brings it."""
        breaker = self._of(key)
        breaker.bad(evidence, now)
        self._note(key, breaker)

    def alive(self, key: InstanceKey) -> None:
        """``key`` answers when it is asked for its health."""
        if key in self._open:
            self._breakers[key].alive()
            self._note(key, self._breakers[key])

    def taken(self, key: InstanceKey, now: float) -> None:
        """A leg goes to ``key``."""
        if key in self._open:
            self._breakers[key].taken(now)

    def out(self, now: float) -> dict[InstanceKey, str]:
        """Who is to be picked last at ``now``, and why."""
        if not self._open:
            return {}
        found: dict[InstanceKey, str] = {}
        for key in self._open:
            opened = self._breakers[key].opened
            if opened is not None and self._breakers[key].is_out(now):
                found[key] = f"its breaker is open: {opened.why}"
        return found

    @property
    def open_now(self) -> int:
        """How many are open, due for a trial or not."""
        return len(self._open)

    def forget(self, known: Callable[[InstanceKey], bool]) -> None:
        """Drop every incarnation that is not ``known`` any more."""
        self._breakers = {key: one for key, one in self._breakers.items() if known(key)}
        self._open &= self._breakers.keys()

    def _of(self, key: InstanceKey) -> Breaker:
        breaker = self._breakers.get(key)
        if breaker is None:
            if len(self._breakers) >= MOST:
                self.forget(self._open.__contains__)
            breaker = self._breakers[key] = Breaker()
        return breaker

    def _note(self, key: InstanceKey, breaker: Breaker) -> None:
        opened = breaker.opened
        if (opened is not None) == (key in self._open):
            return
        if opened is None:
            self._open.discard(key)
        else:
            self._open.add(key)
        self._on_change(key, None if opened is None else opened.why)
