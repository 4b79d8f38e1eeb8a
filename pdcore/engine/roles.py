"""What differs between the roles of a rank: who owns the KV memory, its side of hand-offs, and what decides them."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import zmq

from pdcore.clock import SystemClock
from pdcore.engine.consensus import DecodeConsensus, Participants, PrefillConsensus
from pdcore.engine.device import Device
from pdcore.engine.handoffs import DecodeHandoffs, NoHandoffs, PrefillHandoffs
from pdcore.engine.kv.block_groups import BlockGroup, BlockGroups
from pdcore.engine.kv.blocks import Counts
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.kv.region import pool_bytes
from pdcore.engine.loop import Decider
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.engine.sides import NoSide, Side
from pdcore.engine.staged_side import StagedSide
from pdcore.engine.transfer.device_memory import DeviceRegion, allocate
from pdcore.engine.transfer.mapping import GroupSizes, RankMapping, spread_of
from pdcore.engine.transfer.memfabric_library import Terms
from pdcore.engine.transfer.memory import Region, on_host, private
from pdcore.engine.transfer.offered import OfferedEngines
from pdcore.engine.transfer.orders import DecodeGroup
from pdcore.engine.transfer.plan import Buffer, RegionShape
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import SendingSession
from pdcore.engine.transfer.staging import StagedEngine, check_room
from pdcore.engine.transfer.wakefulness import SHARE, Wakefulness
from pdcore.engine.transfer.wire import RankIdentity
from pdcore.topology.keys import RankPosition

_SOURCES_MOST: Final = 16
"""A hand-off takes a slot per source rank; one from a group with more sources takes the slots of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleParts:
    """``memory`` is what the KV pool is built over; the last three go into the rank's record."""

    side: Side
    memory: Buffer
    rank_ip: str
    rank_port: int | None
    transfer: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every role is built from. ``stack`` ends what is opened here; ``layout`` is the whole model's, ``blocks``
    what each of its KV groups has."""

    spec: RankSpec
    device: Device
    stack: ExitStack
    context: zmq.Context[zmq.Socket[bytes]]
    layout: KvLayout
    blocks: int
    limits: SchedulerLimits
    vocab_size: int

    @property
    def shard(self) -> KvLayout:
        """What this rank holds of the layout."""
        return self.layout.shard(self.spec.tp_size, self.spec.tp)

    @property
    def group_blocks(self) -> Counts:
        """How many blocks each KV group has."""
        return (self.blocks,) * len(self.layout.groups)

    def prefixes(self, blocks: BlockGroups) -> Prefixes | None:
        """What remembers prompts, if it is to."""
        return Prefixes(blocks) if self.spec.prefix_cache else None

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pools of all groups."""
        return pool_bytes(self.shard, self.group_blocks)

    @property
    def group_sizes(self) -> GroupSizes:
        """How many ranks the DP group has."""
        return GroupSizes(cp=self.spec.cp_size, tp=self.spec.tp_size)

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

    @property
    def engine(self) -> OfferedEngines:
        """The transfer engines that this rank was told to use, unopened."""
        spec = self.spec
        return OfferedEngines.named(
            spec.transfer_engine,
            bind_ip=spec.rank_ip,
            secret=(spec.transfer_secret or "").encode(),
            mooncake=(spec.mooncake_protocol, spec.mooncake_device or ""),
            memfabric=Terms(
                host=spec.rank_ip,
                protocol=spec.memfabric_protocol,
                store=spec.memfabric_store,
                device=spec.device_index,
            ),
        )

    @property
    def region_shape(self) -> RegionShape:
        """The pool as transfers see it."""
        return RegionShape(self.shard, self.group_blocks)

    @property
    def is_staged(self) -> bool:
        """Whether KV travels by way of a mirror: the pool is on a device, and some engine reaches the host only."""
        return not (self.device.is_host or self.engine.caps.reaches_devices)

    def private_memory(self) -> Buffer:
        """Memory for the pool, where the model computes, that no other process can map."""
        if self.device.is_host:
            return private(self.pool_bytes, self.engine.caps.alignment)
        return allocate(self.pool_bytes, self.device.torch_device)


def open_side(around: Surroundings) -> RoleParts:
    """The parts for ``around.spec.role``, with memory and sockets open."""
    match around.spec.role:
        case "prefill":
            return _prefill(around)
        case "decode":
            return _decode(around)
        case _:
            return RoleParts(
                side=NoSide(),
                memory=around.private_memory(),
                rank_ip=around.spec.rank_ip,
                rank_port=None,
            )


def decider(around: Surroundings) -> Decider:
    """What a DP leader of ``around.spec.role`` decides with. Opens nothing."""
    spec, limits = around.spec, around.limits
    groups = zip(around.layout.groups, around.group_blocks, strict=True)
    blocks = BlockGroups(*(BlockGroup(block_size=one.block_size, blocks=count) for one, count in groups))
    match spec.role:
        case "prefill":
            prefill = PrefillScheduler(
                limits,
                blocks,
                around.prefixes(blocks),
                per_chunk=spec.per_chunk_sending,
                early=around.device.is_host,
            )
            handoffs = PrefillHandoffs(prefill, PrefillConsensus(_writers_to(around)))
            return Decider(scheduler=prefill, blocks=blocks, handoffs=handoffs)
        case "decode":
            decode, group = DecodeScheduler(limits, blocks), DecodeConsensus(spec.group)
            return Decider(
                scheduler=decode,
                blocks=blocks,
                handoffs=DecodeHandoffs(decode, group, around.vocab_size),
            )
        case _:
            unified = UnifiedScheduler(limits, blocks, around.prefixes(blocks))
            return Decider(scheduler=unified, blocks=blocks, handoffs=NoHandoffs(unified))


def _writers_to(around: Surroundings) -> Participants:
    """Which ranks of this prefill group write into a decode group."""
    spec = around.spec

    def participants(decode: DecodeGroup) -> Collection[RankPosition]:
        mapping = RankMapping(
            prefill=around.group_sizes,
            decode=GroupSizes(cp=decode.cp_size, tp=decode.tp_size),
            layout=around.layout,
            spread=spread_of(decode.instance_id, decode.dp),
        )
        return [RankPosition(spec.dp, rank.cp, rank.tp) for rank in mapping.participants()]

    return participants


def _prefill(around: Surroundings) -> RoleParts:
    memory = around.private_memory()
    session = around.stack.enter_context(
        SendingSession(
            layout=around.layout,
            blocks=around.group_blocks,
            source=memory,
            sizes=around.group_sizes,
            identity=around.identity,
            engine=StagedEngine(around.engine, around.region_shape) if around.is_staged else around.engine,
            bind_ip=around.spec.rank_ip,
            runtime_dir=Path(around.spec.runtime_dir),
            context=around.context,
            clock=SystemClock(),
            threads=around.spec.transfer_threads,
            rooms_most=around.limits.max_queue,
            stash_most=around.limits.max_queue,
            silence_s=around.spec.peer_silence_s,
        )
    )
    endpoint = session.endpoint
    return RoleParts(
        side=session,
        memory=memory,
        rank_ip=endpoint.rank_ip,
        rank_port=endpoint.rank_port,
        transfer=endpoint.transfer,
    )


def _decode(around: Surroundings) -> RoleParts:
    device = around.device
    if around.is_staged:
        check_room(around.pool_bytes, device)
    direct = not (device.is_host or around.is_staged)
    session = around.stack.enter_context(
        ReceivingSession(
            layout=around.layout,
            blocks=around.group_blocks,
            slots=around.limits.slots * _SOURCES_MOST,
            sizes=around.group_sizes,
            identity=around.identity,
            engine=around.engine,
            context=around.context,
            clock=SystemClock(),
            silence_s=around.spec.peer_silence_s,
            wakefulness=Wakefulness(SHARE if len(os.sched_getaffinity(0)) > 1 else 0.0),
            region=partial(DeviceRegion, device.torch_device) if direct else Region,
        )
    )
    side, memory = _staged(around, session) if around.is_staged else (session, session.region_buffer)
    return RoleParts(side=side, memory=memory, rank_ip=around.spec.rank_ip, rank_port=None)


def _staged(around: Surroundings, session: ReceivingSession) -> tuple[Side, Buffer]:
    """The session's region becomes the mirror of a pool on the device."""
    pool = allocate(around.pool_bytes, around.device.torch_device)
    return StagedSide(session, around.region_shape, on_host(session.region_buffer), pool), pool
