"""Whose turn it is to write: a few threads, many peers, and none of them may hold all threads. Pure.

Peers take turns, one job each. A peer that has a thread already, or whose last write ran into doubt, never gets the
last free thread; and while its write has been running for longer than ``SLOW_S``, no second thread at all. So one
decode rank that stands still holds one thread, and the others write on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

SLOW_S: Final = 0.25

Peer = TypeVar("Peer")
Job = TypeVar("Job")


class Turns(Generic[Peer, Job]):
    """Jobs that wait, in order per peer, and what is running. ``threads`` run them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._waiting: OrderedDict[Peer, deque[Job]] = OrderedDict()
        self._running: dict[Peer, list[float]] = {}
        self._doubted: set[Peer] = set()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def busy(self) -> int:
        """Threads that run a job."""
        return sum(map(len, self._running.values()))

    def put(self, peer: Peer, job: Job) -> None:
        """``job`` waits for its turn."""
        self._waiting.setdefault(peer, deque()).append(job)

    def withdraw(self, peer: Peer, job: Job) -> bool:
        """Take back a job that waits; False when it does not."""
        waiting = self._waiting.get(peer, deque())
        if job not in waiting:
            return False
        waiting.remove(job)
        if not waiting:
            del self._waiting[peer]
        return True

    def take(self, now: float) -> Job | None:
        """The next job, which counts as running from ``now``; its peer goes to the end of the line."""
        for peer in self._waiting:
            if self._may_run(peer, now):
                break
        else:
            return None
        job = self._waiting[peer].popleft()
        if self._waiting[peer]:
            self._waiting.move_to_end(peer)
        else:
            del self._waiting[peer]
        self._running.setdefault(peer, []).append(now)
        return job

    def done(self, peer: Peer, began: float, *, in_doubt: bool) -> None:
        """A job of ``peer`` that was taken at ``began`` has ended."""
        self._running[peer].remove(began)
        if not self._running[peer]:
            del self._running[peer]
        (self._doubted.add if in_doubt else self._doubted.discard)(peer)

    def forget(self, peer: Peer) -> None:
        """The peer is gone for good."""
        self._doubted.discard(peer)

    def _may_run(self, peer: Peer, now: float) -> bool:
        running = self._running.get(peer, [])
        if any(now - began > SLOW_S for began in running):
            return False
        if self._threads > 1 and self._threads - self.busy == 1:
            return not running and peer not in self._doubted
        return True
