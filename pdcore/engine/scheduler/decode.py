"""Decode: a request waits for blocks, asks prefill for its KV, and generates once that has arrived.

A hand-off is named by an integer that grows strictly over this scheduler's life. Its blocks belong to the request
until the request ends; if it ends before the KV arrived, they are quarantined under the hand-off, because a write may
still land, until it is said to be ``drained``. Neither a deadline nor an abort frees memory.

Blocks, and places in the batch, that wait for prefill, arriving or quarantined, are capped for each prefill instance and
in all (``backlog``), so that a peer that stops answering cannot take the instance hostage. One whose quarantine lasts
too long is to be ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import add

from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.kv.blocks import Counts
from pdcore.engine.messages import Output, Start
from pdcore.engine.scheduler.backlog import Backlog
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.limits import STUCK_AFTER_S, SchedulerLimits
from pdcore.engine.scheduler.line import Verdict
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.plan import Admit, Compute, EndPeer, StepPlan
from pdcore.engine.scheduler.request import Peer, Request
from pdcore.errors import ApiError


@dataclass(slots=True, kw_only=True)
class _Open:
    """A hand-off whose memory may still be written. Without a ``request`` it is in quarantine, since ``ended_at``.

    ``claim`` is what waits for the peer: blocks of each group, and one place in the batch.
    """

    peer: Peer
    request: Request | None
    claim: Counts
    opened_at: float
    ended_at: float = 0.0


class DecodeScheduler(Scheduler):
    """Requests enter by hand-off; a retracted one is recomputed here.

    Mutable besides the parts: ``_open`` (hand-offs by name, oldest first), ``_quarantined`` (those without a request,
    by how long), ``_capped`` (peers whose share keeps a request out, and since when; None: the share of all),
    ``_condemned`` (peers whose end was ordered, and when).
    """

    def __init__(self, limits: SchedulerLimits, blocks: BlockGroups) -> None:
        super().__init__(limits, blocks)
        self._backlog = Backlog(
            (*blocks.total, limits.max_batch), peer_share=limits.peer_share, total_share=limits.total_share
        )
        self._open: dict[int, _Open] = {}
        self._quarantined: dict[int, _Open] = {}
        self._capped: dict[Peer | None, float] = {}
        self._condemned: dict[Peer, float] = {}
        self._last_handoff = 0
        self._least_claim: Counts = (1,) * (len(blocks.total) + 1)

    def arrived(
        self, handoff: int, first_token: int, kv_len: int, *, cached_blocks: int = 0
    ) -> tuple[Request, Output] | None:
        """The KV is here and nobody writes there any more: the request runs, or is complete. Prefill had computed
        ``cached_blocks`` of it for others.

        None if the request ended before; its blocks are free then.
        """
        entry = self._open.get(handoff)
        if entry is None or entry.request is None:
            self.drained(handoff)
            return None
        request = entry.request
        self._close(handoff)
        request.handoff = None
        request.computed = kv_len
        request.cached = min(cached_blocks * self._blocks.block_sizes[0], kv_len)
        self._run(request)
        return request, self._emit(request, first_token)

    def failed(self, handoff: int) -> Request | None:
        """The hand-off is over without KV; its blocks wait for ``drained``. The request, if still held."""
        entry = self._open.get(handoff)
        request = None if entry is None else entry.request
        if request is not None:
            self._end(request)
        return request

    def drained(self, handoff: int) -> Request | None:
        """No write of this hand-off can land any more. Unknown ones are ignored.

        The request is returned if it was still held: it is over too, because its KV will never come.
        """
        request = self.failed(handoff)
        if handoff in self._open:
            self._close(handoff)
            self._blocks.release(handoff)
        return request

    def handoff_of(self, request_id: str) -> int | None:
        """The hand-off under way for a request, for its abort."""
        request = self.find(request_id)
        return None if request is None else request.handoff

    def _refuse(self, start: Start) -> None:
        super()._refuse(start)
        if start.prefill is None:
            raise ApiError("internal", "a decode request came without the prefill instance that has its KV")

    def _enqueue(self, start: Start, deadline: float) -> Request:
        request = self._new(start, deadline, Place.PREALLOC)
        assert start.prefill is not None, "refused otherwise"
        request.peer = (start.prefill.instance_id, start.prefill.incarnation)
        self._wait(request)
        return request

    def _growing(self) -> Iterable[Request]:
        arriving = (entry.request for entry in self._open.values() if entry.request is not None)
        return chain(self._running.values(), arriving)

    def _has_batch_room(self) -> bool:
        return self._places[Place.RUNNING] + self._places[Place.TRANSFER] < self._limits.max_batch

    def _judge(self, request: Request) -> Verdict:
        verdict = super()._judge(request)
        if verdict is Verdict.CLOSED or request.place is Place.RETRACTED:
            return verdict
        if len(self._open) >= self._limits.slots:
            return Verdict.LANE_FULL
        assert request.peer is not None, "set when it joined the line"
        claim = _claim(request)
        if not self._backlog.peer_has_room(request.peer, claim):
            self._capped.setdefault(request.peer, self._now)
            if self._backlog.peer_has_room(request.peer, self._least_claim):
                return Verdict.TOO_LARGE_FOR_LANE
            return Verdict.LANE_FULL
        if not self._backlog.has_room(claim):
            self._capped.setdefault(None, self._now)
            return Verdict.TOO_LARGE
        return verdict

    def _enter(self, request: Request) -> None:
        if request.place is Place.RETRACTED:
            super()._enter(request)
            return
        self._give_blocks(request)
        self._move(request, Place.TRANSFER)
        assert request.peer is not None, "set when it joined the line"
        self._last_handoff += 1
        handoff = request.handoff = self._last_handoff
        claim = _claim(request)
        self._open[handoff] = _Open(peer=request.peer, request=request, claim=claim, opened_at=self._now)
        self._backlog.add(request.peer, claim)
        self._capped.pop(request.peer, None)
        self._capped.pop(None, None)
        prompt = self._blocks.needed(request.known)
        destination = tuple(ids[:count] for ids, count in zip(request.blocks, prompt, strict=True))
        self._plan.admit.append(
            Admit(request_id=request.request_id, handoff=handoff, room=request.start.room, blocks=destination)
        )

    def _let_go(self, request: Request) -> None:
        """Its KV is on its way: the blocks are nobody's until that is over."""
        assert request.handoff is not None, "every hand-off has its name"
        entry = self._quarantined[request.handoff] = self._open[request.handoff]
        entry.request = None
        entry.ended_at = self._now
        self._blocks.quarantine_owner(request.request_id, request.handoff)

    def _close(self, handoff: int) -> None:
        """No memory waits for this hand-off any more."""
        entry = self._open.pop(handoff)
        self._quarantined.pop(handoff, None)
        self._backlog.remove(entry.peer, entry.claim)
        if entry.peer in self._condemned and not any(self._backlog.of(entry.peer)):
            del self._condemned[entry.peer]

    def _stuck(self) -> Counts:
        return self._stuck_claims()[:-1]

    def _stuck_claims(self) -> Counts:
        """What waits for peers that may never answer."""
        claims: Counts = (0,) * len(self._least_claim)
        for entry in self._open.values():
            if entry.request is None or self._now - entry.opened_at >= STUCK_AFTER_S:
                claims = tuple(map(add, claims, entry.claim))
        return claims

    def _is_worth_holding(self, request: Request) -> bool:
        if request.place is Place.RETRACTED:
            return super()._is_worth_holding(request)
        allowed = self._backlog.has_room(_claim(request), self._stuck_claims())
        return allowed and super()._is_worth_holding(request)

    def _admit(self) -> None:
        super()._admit()
        for peer, since in tuple(self._capped.items()):
            if self._now - since >= self._limits.backlog_s:
                self._turn_away(peer)

    def _turn_away(self, peer: Peer | None) -> None:
        """Refuse those whom the share of ``peer`` (None: of all) has kept out for too long."""
        late = self._line.waiting_since(self._now - self._limits.backlog_s, peer)
        kept_out = [r for r in late if not self._share_allows(peer, _claim(r))]
        for request in kept_out:
            if peer is None:
                self._fail(
                    request, "backend_unavailable", "too much of the KV cache waits for prefill instances"
                )
            else:
                message = f"too much of the KV cache waits for prefill instance {peer[0]}"
                self._fail(request, "peer_backlog", message)
        if self._share_allows(peer, self._least_claim) and not kept_out:
            del self._capped[peer]

    def _share_allows(self, peer: Peer | None, claim: Counts) -> bool:
        return self._backlog.has_room(claim) if peer is None else self._backlog.peer_has_room(peer, claim)

    def _finished(self, batch: tuple[Compute, ...]) -> StepPlan:
        return self._plan.finished(
            batch,
            end_peers=tuple(self._condemn()) if self._quarantined else (),
            restart=self._why_restart() if self._condemned else None,
        )

    def _condemn(self) -> Iterator[EndPeer]:
        """Peers whose oldest quarantine lasts too long, each once."""
        for entry in self._quarantined.values():
            age_s = self._now - entry.ended_at
            if age_s < self._limits.quarantine_s:
                return
            if entry.peer not in self._condemned:
                self._condemned[entry.peer] = self._now
                instance_id, incarnation = entry.peer
                yield EndPeer(instance_id=instance_id, incarnation=incarnation, age_s=age_s)

    def _why_restart(self) -> str | None:
        for (instance_id, incarnation), since in self._condemned.items():
            if self._now - since >= self._limits.fence_s:
                held = sum(self._backlog.of((instance_id, incarnation))[:-1])
                return (
                    f"{held} KV blocks may still be written by prefill instance {instance_id} (incarnation "
                    f"{incarnation}), whose end was ordered {self._now - since:.0f} s ago"
                )
        return None


def _claim(request: Request) -> Counts:
    """What a request that waits for its KV takes from its peer's share."""
    return (*request.needed, 1)
