"""What differs between the roles of a rank: its scheduler, who owns the KV memory, and its side of a hand-off."""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from pdcore.clock import SystemClock
from pdcore.engine.handoffs import DecodeHandoffs, Handoffs, NoHandoffs, PrefillHandoffs
from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.scheduler.base import Scheduler, SchedulerLimits
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.wire import RankIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleParts:
    """``memory`` is what the KV pool is built over; the last three go into the rank's record."""

    scheduler: Scheduler
    handoffs: Handoffs
    memory: memoryview
    rank_ip: str
    rank_port: int | None
    transfer: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every role is built from. ``stack`` ends what is opened here."""

    spec: RankSpec
    stack: ExitStack
    context: zmq.Context[zmq.Socket[bytes]]
    layout: KvLayout
    pool: BlockPool
    limits: SchedulerLimits
    vocab_size: int

    @property
    def identity(self) -> RankIdentity:
        spec = self.spec
        return RankIdentity(
            instance_id=spec.instance_id,
            incarnation=spec.incarnation,
            dp=spec.dp,
            cp=spec.cp,
            tp=spec.tp,
        )

    def private_memory(self) -> memoryview:
        """Memory for the pool that no other process can map."""
        return memoryview(mmap.mmap(-1, self.pool.total * self.layout.block_bytes))


def open_role(around: Surroundings) -> RoleParts:
    """The parts for ``around.spec.role``, with memory and sockets open."""
    match around.spec.role:
        case "prefill":
            return _prefill(around)
        case "decode":
            return _decode(around)
        case _:
            return _unified(around)


def _unified(around: Surroundings) -> RoleParts:
    scheduler = UnifiedScheduler(around.limits, around.pool)
    return RoleParts(
        scheduler=scheduler,
        handoffs=NoHandoffs(scheduler),
        memory=around.private_memory(),
        rank_ip=around.spec.rank_ip,
        rank_port=None,
    )


def _prefill(around: Surroundings) -> RoleParts:
    scheduler = PrefillScheduler(around.limits, around.pool)
    memory = around.private_memory()
    session = around.stack.enter_context(
        SendingSession(
            layout=around.layout,
            source=memory,
            identity=around.identity,
            engine=ShmEngine(),
            bind_ip=around.spec.rank_ip,
            runtime_dir=Path(around.spec.runtime_dir),
            context=around.context,
            clock=SystemClock(),
            threads=around.spec.transfer_threads,
            rooms_most=around.limits.max_queue,
            stash_most=around.limits.max_queue,
        )
    )
    endpoint = session.endpoint
    return RoleParts(
        scheduler=scheduler,
        handoffs=PrefillHandoffs(scheduler, session),
        memory=memory,
        rank_ip=endpoint.rank_ip,
        rank_port=endpoint.rank_port,
        transfer=endpoint.transfer,
    )


def _decode(around: Surroundings) -> RoleParts:
    scheduler = DecodeScheduler(around.limits, around.pool)
    session = around.stack.enter_context(
        ReceivingSession(
            layout=around.layout,
            blocks_total=around.pool.total,
            slots_total=around.limits.slots,
            identity=around.identity,
            engine=ShmEngine(),
            context=around.context,
            clock=SystemClock(),
        )
    )
    return RoleParts(
        scheduler=scheduler,
        handoffs=DecodeHandoffs(scheduler, session, around.vocab_size),
        memory=session.region_buffer,
        rank_ip=around.spec.rank_ip,
        rank_port=None,
    )
