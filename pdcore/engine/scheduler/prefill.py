"""Prefill: a request waits for decode's handshake, computes its prompt, samples one token, and is sent.

The handshake is the admission: a room without one never starts. After ``Handoff`` the request waits in
``_sending`` until the session says how the write ended; its blocks are pinned until the write itself has ended,
whatever happens to the request meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.messages import Start
from pdcore.engine.scheduler.base import Scheduler, SchedulerLimits, _Collecting
from pdcore.engine.scheduler.plan import Handoff, SchedulerStatistics
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError


class PrefillScheduler(Scheduler):
    """Rooms rather than request ids name a request towards the session."""

    def __init__(self, limits: SchedulerLimits, pool: BlockPool) -> None:
        super().__init__(limits, pool)
        self._bootstrapping: dict[int, Request] = {}
        self._sending: dict[int, Request] = {}
        self._pinned: dict[int, tuple[int, ...]] = {}

    def handshaken(self, room: int) -> None:
        """Decode has blocks and a slot for ``room``: it may compute. Unknown rooms are ignored."""
        request = self._bootstrapping.pop(room, None)
        if request is not None:
            self._waiting.append(request)

    def sent(self, room: int) -> Request | None:
        """KV and slot of ``room`` are written; the request is over and returned if it was still held."""
        request = self._sending.pop(room, None)
        if request is not None:
            self._pool.free(request.blocks)
        return request

    def failed(self, room: int) -> Request | None:
        """The session gave ``room`` up, in whatever state; the request is returned if it was still held."""
        request = next((r for r in self._held() if r.start.room == room), None)
        if request is not None:
            self._drop(request)
        return request

    def write_ended(self, room: int) -> None:
        """No write reads the source blocks of ``room`` any more."""
        self._pool.unpin(self._pinned.pop(room))

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            queued=len(self._bootstrapping) + len(self._waiting),
            transferring=len(self._sending),
            running=len(self._running),
            retracted_total=self._retracted_total,
        )

    def _refuse_what_cannot_run(self, start: Start) -> None:
        super()._refuse_what_cannot_run(start)
        if start.room in self._pinned:
            message = f"bootstrap_room {start.room} ended, but a write of it is still under way"
            raise ApiError("room_in_use", message, param="bootstrap_room")

    def _enqueue(self, request: Request) -> None:
        self._bootstrapping[request.start.room] = request

    def _elsewhere(self) -> Iterator[Request]:
        yield from self._bootstrapping.values()
        yield from self._sending.values()

    def _spare_tokens(self) -> int:
        return 0

    def _growing(self) -> tuple[Request, ...]:
        return ()  # a prefill request has all its blocks from the start

    def _sampled(self, request: Request, token: int, outcome: _Collecting) -> None:
        room = request.start.room
        del self._running[request.request_id]
        self._sending[room] = request
        self._pool.pin(request.blocks)
        self._pinned[room] = request.blocks
        outcome.handoffs.append(
            Handoff(
                request_id=request.request_id,
                room=room,
                blocks=request.blocks,
                first_token=token,
                kv_len=len(request.start.prompt),
            )
        )

    def _drop(self, request: Request) -> bool:
        room = request.start.room
        if self._bootstrapping.pop(room, None) is not None:
            return True
        if self._sending.pop(room, None) is not None:
            self._pool.free(request.blocks)
            return True
        return super()._drop(request)
