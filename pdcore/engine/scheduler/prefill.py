"""Prefill: a request waits for decode's handshake, computes its prompt, samples one token, and is sent.

The handshake is the admission: a room without one never starts. After ``Handoff`` the request waits until the session
says how the write ended; its blocks are pinned until the write itself has ended, whatever happens to the request
meanwhile. It has all its blocks from the start, so nothing is ever retracted here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.kv.blocks import BlockLists, Counts
from pdcore.engine.messages import Start
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.limits import STUCK_AFTER_S, SchedulerLimits
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.plan import Handoff
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError


class PrefillScheduler(Scheduler):
    """Rooms rather than request ids name a request towards the session. Events of unknown rooms are ignored."""

    def __init__(
        self, limits: SchedulerLimits, blocks: BlockGroups, prefixes: Prefixes | None = None
    ) -> None:
        super().__init__(limits, blocks, prefixes)
        self._pinned: dict[int, tuple[BlockLists, float]] = {}

    def handshaken(self, room: int) -> None:
        """Decode has blocks and a slot for ``room``: it may compute."""
        request = self._rooms.get(room)
        if request is not None and request.place is Place.BOOTSTRAP:
            self._move(request, Place.PREALLOC)
            self._wait(request)

    def sent(self, room: int) -> Request | None:
        """KV and slot of ``room`` are written; the request is over and returned if it was still held."""
        request = self._rooms.get(room)
        if request is None or request.place is not Place.TRANSFER:
            return None
        self._end(request)
        return request

    def failed(self, room: int) -> Request | None:
        """The session gave ``room`` up, in whatever state; the request is returned if it was still held."""
        request = self._rooms.get(room)
        if request is not None:
            self._end(request)
        return request

    def write_ended(self, room: int) -> None:
        """No write reads the source blocks of ``room`` any more."""
        if room in self._pinned:
            blocks, _since = self._pinned.pop(room)
            self._blocks.unpin(blocks)

    def _refuse(self, start: Start) -> None:
        super()._refuse(start)
        if start.room in self._pinned:
            message = f"bootstrap_room {start.room} ended, but a write of it is still under way"
            raise ApiError("room_in_use", message, param="bootstrap_room")

    def _enqueue(self, start: Start, deadline: float) -> Request:
        return self._new(start, deadline, Place.BOOTSTRAP)

    def _first_tokens(self, request: Request) -> int:
        return request.known

    def _growing(self) -> tuple[Request, ...]:
        return ()

    def _growth_of(self, requests: Iterable[Request]) -> Counts:
        return (0,) * len(self._blocks.total)

    def _stuck(self) -> Counts:
        late = [blocks for blocks, since in self._pinned.values() if self._now - since >= STUCK_AFTER_S]
        return tuple(sum(len(blocks[group]) for blocks in late) for group in range(len(self._blocks.total)))

    def _sampled(self, request: Request, token: int) -> Handoff:
        room = request.start.room
        del self._running[request.request_id]
        self._move(request, Place.TRANSFER)
        self._blocks.pin(request.blocks)
        self._pinned[room] = (request.blocks, self._now)
        return Handoff(
            request_id=request.request_id,
            room=room,
            blocks=request.blocks,
            first_token=token,
            kv_len=request.known,
            cached_blocks=request.cached // self._blocks.block_sizes[0],
        )

    def _let_go(self, request: Request) -> None:
        if request.place is Place.TRANSFER:
            self._blocks.free_owner(request.request_id)
