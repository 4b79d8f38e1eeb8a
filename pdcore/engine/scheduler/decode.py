"""Decode: a request waits for blocks and a slot, asks prefill for its KV, and generates once that has arrived.

A hand-off is named by its ``seq``. Its blocks belong to the request until the request ends; if it ends before the KV
arrived, they are quarantined under the seq, because a write may still land, until the session says ``drained``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.messages import Output
from pdcore.engine.scheduler.base import Scheduler, SchedulerLimits, _Collecting
from pdcore.engine.scheduler.plan import Admit, SchedulerStatistics
from pdcore.engine.scheduler.request import Request


class DecodeScheduler(Scheduler):
    """Requests enter by hand-off; a retracted one is recomputed here, from ``_waiting``."""

    def __init__(self, limits: SchedulerLimits, pool: BlockPool) -> None:
        super().__init__(limits, pool)
        self._prealloc: deque[Request] = deque()
        self._opening: dict[str, Request] = {}
        self._transferring: dict[int, Request] = {}
        self._quarantined: set[int] = set()

    def opened(self, request_id: str, seq: int) -> None:
        """The hand-off that ``plan`` admitted is under way as ``seq``."""
        self._transferring[seq] = self._opening.pop(request_id)

    def not_opened(self, request_id: str) -> None:
        """The hand-off could not even be asked for: nobody knows the blocks, so they are free at once."""
        self._pool.free(self._opening.pop(request_id).blocks)

    def postponed(self, request_id: str) -> None:
        """Too much memory waits for its prefill already: it is first in line again, and holds up nobody else."""
        request = self._opening.pop(request_id)
        self._pool.free(request.blocks)
        request.blocks = ()
        self._prealloc.appendleft(request)

    def arrived(self, seq: int, first_token: int, kv_len: int) -> tuple[Request, Output] | None:
        """The KV of ``seq`` is here and nobody writes there any more: the request runs, or is complete.

        None if the request ended before; its blocks are free then.
        """
        request = self._transferring.pop(seq, None)
        if request is None:
            self.drained(seq)
            return None
        request.computed = kv_len
        self._running[request.request_id] = request
        outcome = _Collecting()
        self._emit(request, first_token, outcome)
        return request, outcome.outputs[0]

    def failed(self, seq: int) -> Request | None:
        """The hand-off is over without KV; its blocks wait for ``drained``. The request, if still held."""
        request = self._transferring.get(seq)
        if request is not None:
            self._drop(request)
        return request

    def drained(self, seq: int) -> None:
        """No write of ``seq`` can land any more."""
        self._quarantined.discard(seq)
        self._pool.release(seq)

    def seq_of(self, request_id: str) -> int | None:
        """The hand-off under way for a request, for its abort."""
        return next((s for s, r in self._transferring.items() if r.request_id == request_id), None)

    @property
    def has_computation(self) -> bool:
        return super().has_computation or bool(self._prealloc)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            queued=len(self._prealloc) + len(self._waiting),
            transferring=len(self._transferring) + len(self._opening),
            running=len(self._running),
            retracted_total=self._retracted_total,
        )

    def _enqueue(self, request: Request) -> None:
        self._prealloc.append(request)

    def _elsewhere(self) -> Iterator[Request]:
        yield from self._prealloc
        yield from self._opening.values()
        yield from self._transferring.values()

    def _growing(self) -> Iterable[Request]:
        return chain(self._running.values(), self._opening.values(), self._transferring.values())

    def _has_batch_room(self) -> bool:
        return sum(1 for _ in self._growing()) < self._limits.max_batch

    def _unexpired(self, request: Request, now: float) -> bool:
        """The session watches the deadline of a hand-off, because only it can tell prefill."""
        return super()._unexpired(request, now) or request in self._transferring.values()

    def _admit(self) -> tuple[Admit, ...]:
        self._start_waiting()
        admitted = []
        while self._prealloc and self._has_batch_room() and self._has_slot():
            request = self._prealloc[0]
            if not self._admissible(request.known + 1):
                break
            admitted.append(self._open(self._prealloc.popleft()))
        return tuple(admitted)

    def _open(self, request: Request) -> Admit:
        self._give_blocks(request, request.known + 1)
        self._opening[request.request_id] = request
        destination = request.blocks[: self._blocks_for(len(request.start.prompt))]
        return Admit(request_id=request.request_id, blocks=destination)

    def _has_slot(self) -> bool:
        return len(self._opening) + len(self._transferring) + len(self._quarantined) < self._limits.slots

    def _drop(self, request: Request) -> bool:
        seq = self.seq_of(request.request_id)
        if seq is not None:
            del self._transferring[seq]
            self._quarantined.add(seq)
            self._pool.quarantine(request.blocks, seq)
            return True
        if request in self._prealloc:
            self._prealloc.remove(request)
            return True
        return super()._drop(request)
