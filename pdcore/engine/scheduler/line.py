"""Who gets memory next: requests that wait for blocks, without blocking each other and without starving.

First come, first served, but a request that does not fit is passed over, so a large one does not hold up small ones.
Each time a later one enters, those passed over are *overtaken*; a request that was overtaken ``MOST_OVERTAKEN`` times,
or for ``LONGEST_OVERTAKEN_S``, is *aged*: it comes first and holds the line, nobody enters until it fits. It holds
nobody while that would not help, because what it lacks is stuck with a peer.

Requests of different peers wait in different lanes: what does not fit its peer's share is overtaken only by those of
the same lane, and closes or holds no other. Those that gave their blocks back come last. A pass ends in a lane when it
passed over ``LOOK_AHEAD``, which bounds what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from heapq import merge
from itertools import chain, islice, takewhile
from typing import Final

from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.request import Peer, Request

MOST_OVERTAKEN: Final = 16
LONGEST_OVERTAKEN_S: Final = 3.0
LOOK_AHEAD: Final = 32


class Verdict(Enum):
    """Whether a waiting request may enter now."""

    FITS = auto()
    TOO_LARGE = auto()  # for what is free; a smaller one may fit
    TOO_LARGE_FOR_LANE = auto()  # for what its peer may still have
    LANE_FULL = auto()  # its peer may have nothing more
    CLOSED = auto()  # nobody may enter


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in the line. ``overtaken_since`` is the instant it was overtaken first."""

    request: Request
    ticket: int
    joined_at: float
    overtaken: int = 0
    overtaken_since: float = 0.0


_Waitings = dict[str, _Waiting]


class Line:
    """Mutable: ``_home`` says which of ``_aged``, ``_again`` and the lanes holds a request; those overtaken and not
    aged are also in ``_overtaken``, the longest first."""

    def __init__(self) -> None:
        self._home: dict[str, _Waitings] = {}
        self._aged: _Waitings = {}
        self._lanes: dict[Peer | None, _Waitings] = {}
        self._again: _Waitings = {}
        self._overtaken: _Waitings = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._home)

    def join(self, request: Request, now: float) -> None:
        """Wait at the end; a retracted request behind everybody who has not had blocks yet."""
        self._tickets += 1
        waiting = _Waiting(request, self._tickets, now)
        retracted = request.place is Place.RETRACTED
        self._put(waiting, self._again if retracted else self._lanes.setdefault(request.peer, {}))

    def leave(self, request: Request) -> None:
        """Wait no longer."""
        del self._home.pop(request.request_id)[request.request_id]
        self._overtaken.pop(request.request_id, None)
        if not self._lanes.get(request.peer, True):
            del self._lanes[request.peer]

    def serve(
        self,
        now: float,
        *,
        judge: Callable[[Request], Verdict],
        enter: Callable[[Request], None],
        is_worth_holding: Callable[[Request], bool],
    ) -> None:
        """Let everybody enter who may; ``enter`` is called for a request that has left the line."""
        self._age_the_late(now)
        closed: set[Peer | None] = set()
        passed: list[_Waiting] = []
        passed_in_lane: dict[Peer | None, list[_Waiting]] = {}
        for waiting in self._in_order(closed):
            request = waiting.request
            match judge(request):
                case Verdict.FITS:
                    behind = () if request.place is Place.RETRACTED else self._last()
                    self.leave(request)
                    enter(request)
                    for older in (*passed, *passed_in_lane.get(request.peer, ()), *behind):
                        self._overtake(older, now)
                case Verdict.TOO_LARGE:
                    if self._is_aged(waiting) and is_worth_holding(request):
                        return
                    passed.append(waiting)
                case Verdict.TOO_LARGE_FOR_LANE:
                    if self._is_aged(waiting):
                        closed.add(request.peer)
                    passed_in_lane.setdefault(request.peer, []).append(waiting)
                case Verdict.LANE_FULL:
                    closed.add(request.peer)
                case Verdict.CLOSED:
                    return

    def waiting_since(self, instant: float, peer: Peer | None = None) -> tuple[Request, ...]:
        """Those who joined then or before and never had blocks; with ``peer``, of its lane alone."""
        lanes = self._lanes.values() if peer is None else (self._lanes.get(peer, {}),)
        aged = (w.request for w in self._aged.values() if w.joined_at <= instant)
        late = chain.from_iterable(
            takewhile(lambda w: w.joined_at <= instant, lane.values()) for lane in lanes
        )
        return tuple(
            r
            for r in chain(aged, (w.request for w in late))
            if r.place is Place.PREALLOC and peer in (None, r.peer)
        )

    def _in_order(self, closed: set[Peer | None]) -> Iterator[_Waiting]:
        aged = tuple(self._aged.values())
        lanes = [_while_open(peer, lane, closed) for peer, lane in self._lanes.items()]
        fresh = lanes[0] if len(lanes) == 1 else merge(*lanes, key=lambda w: w.ticket)
        return chain((w for w in aged if w.request.peer not in closed), fresh, self._last())

    def _last(self) -> tuple[_Waiting, ...]:
        return tuple(islice(self._again.values(), LOOK_AHEAD))

    def _overtake(self, waiting: _Waiting, now: float) -> None:
        if self._is_aged(waiting):
            return
        if waiting.overtaken == 0:
            waiting.overtaken_since = now
            self._overtaken[waiting.request.request_id] = waiting
        waiting.overtaken += 1
        if waiting.overtaken >= MOST_OVERTAKEN:
            self._age(waiting)

    def _age_the_late(self, now: float) -> None:
        for waiting in tuple(self._overtaken.values()):
            if now - waiting.overtaken_since < LONGEST_OVERTAKEN_S:
                return
            self._age(waiting)

    def _age(self, waiting: _Waiting) -> None:
        self.leave(waiting.request)
        self._put(waiting, self._aged)

    def _is_aged(self, waiting: _Waiting) -> bool:
        return waiting.request.request_id in self._aged

    def _put(self, waiting: _Waiting, home: _Waitings) -> None:
        home[waiting.request.request_id] = waiting
        self._home[waiting.request.request_id] = home


def _while_open(peer: Peer | None, lane: _Waitings, closed: set[Peer | None]) -> Iterator[_Waiting]:
    """A lane in order until it is closed or ``LOOK_AHEAD`` were passed over; those who enter leave it meanwhile."""
    passed = 0
    while ahead := tuple(islice(lane.values(), passed, LOOK_AHEAD)):
        for waiting in ahead:
            if peer in closed:
                return
            yield waiting
            passed += waiting.request.request_id in lane
