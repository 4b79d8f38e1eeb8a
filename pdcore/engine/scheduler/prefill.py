"""Prefill: a request waits for decode's handshake, computes its prompt, samples one token, and is sent.

The handshake is the admission: a room without one never starts. After ``Handoff`` the request waits until the session
says how the write ended; its blocks are pinned until the write itself has ended, whatever happens to the request
meanwhile. It has all its blocks from the start, so nothing is ever retracted here.

With ``per_chunk`` the blocks that a chunk filled are sent while the next one is computed, and those that were found in
the cache while the first one is. All blocks of a request are pinned from then on, once for all its writes. With
``early`` the last ones go as well before the first token is sampled, as soon as the step has stored them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.kv.blocks import BlockLists, Counts
from pdcore.engine.messages import Start
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.limits import STUCK_AFTER_S, SchedulerLimits
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.plan import Ahead, Compute, Handoff, StepPlan
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError


class PrefillScheduler(Scheduler):
    """Rooms rather than request ids name a request towards the session. Events of unknown rooms are ignored."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockGroups,
        prefixes: Prefixes | None = None,
        *,
        per_chunk: bool = False,
        early: bool = False,
    ) -> None:
        super().__init__(limits, blocks, prefixes)
        self._per_chunk = per_chunk
        self._early = early
        self._unremembered: list[Request] = []
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

    def settle(self) -> None:
        """Remember what the last step computed; it was sent first."""
        for request in self._unremembered:
            if request.place is not Place.ENDED:
                super()._remember(request)
        self._unremembered.clear()

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

    def _remember(self, request: Request) -> None:
        self._unremembered.append(request)

    def _stuck(self) -> Counts:
        late = [
            blocks
            for room, (blocks, since) in self._pinned.items()
            if self._now - since >= STUCK_AFTER_S and not self._is_computing(room)
        ]
        return tuple(sum(len(blocks[group]) for blocks in late) for group in range(len(self._blocks.total)))

    def _is_computing(self, room: int) -> bool:
        """Whether the prompt of a pinned room is not complete yet."""
        request = self._rooms.get(room)
        return request is not None and request.place is Place.RUNNING

    def _finished(self, batch: tuple[Compute, ...]) -> StepPlan:
        plan = super()._finished(batch)
        if not self._per_chunk:
            return plan
        fuller = [request for request in self._running.values() if self._is_fuller(request)]
        ahead = tuple([self._ahead(request, request.computed) for request in fuller])
        last = [self._running[item.request_id] for item in batch if item.samples and self._early]
        completing = tuple([self._ahead(request, request.known) for request in last])
        return msgspec.structs.replace(plan, ahead=ahead, completing=completing) if ahead or last else plan

    def _is_fuller(self, request: Request) -> bool:
        """Whether more of its blocks are full than were sent ahead."""
        return any(request.computed // n > request.ahead // n for n in self._blocks.block_sizes)

    def _ahead(self, request: Request, computed: int) -> Ahead:
        request.ahead = computed
        return Ahead(
            room=request.start.room,
            blocks=request.blocks,
            kv_len=request.known,
            computed=computed,
            first=self._pin(request),
        )

    def _pin(self, request: Request) -> bool:
        """The request's blocks are read until ``write_ended``; whether they were not before."""
        room = request.start.room
        first = room not in self._pinned
        if first:
            self._blocks.pin(request.blocks)
        self._pinned[room] = (request.blocks, self._now)
        return first

    def _sampled(self, request: Request, token: int) -> Handoff:
        room = request.start.room
        del self._running[request.request_id]
        self._move(request, Place.TRANSFER)
        return Handoff(
            request_id=request.request_id,
            room=room,
            blocks=request.blocks,
            first_token=token,
            kv_len=request.known,
            cached_blocks=request.cached // self._blocks.block_sizes[0],
            first=self._pin(request),
        )

    def _let_go(self, request: Request) -> None:
        if request.place is Place.TRANSFER:
            self._blocks.free_owner(request.request_id)
