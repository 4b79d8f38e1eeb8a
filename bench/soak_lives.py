"""One registration from start to end, seen from its parent and by whoever follows."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from pdcore.clock import SystemClock
from pdcore.registry import machine
from pdcore.registry.channel import Channel
from pdcore.registry.follower import Follower
from pdcore.registry.registrar import serve
from pdcore.registry.registrar_messages import (
    PARENT,
    Leave,
    RegistrarSpec,
    Start,
    Status,
    Want,
    Watch,
    decode_status,
    encode,
)
from pdcore.registry.registration import Registration
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology
from tests.support import registrations
from tests.support.registrations import FIRST, instance_record, rank_record

LEAVE_S = 10.0


async def register_and_leave(
    url: str, keyspace: Keyspace, instance_id: str, incarnation: str, follower: Follower, seen_s: float
) -> None:
    """A registrar in this process: its channel, its connection to the store, its end. ``follower`` sees all of it."""
    spec = _spec(url, keyspace, instance_id, incarnation)
    ours, theirs = socket.socketpair()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(theirs, SystemClock()))
        with Channel(ours) as channel:
            await _begin(channel, spec)
            await _until(channel, lambda status: status.version == 1)
            await _seen(follower, instance_id, incarnation, seen_s)
            await channel.send(encode(Leave(reason="left", timeout_s=LEAVE_S)))
            await _until(channel, lambda status: status.left)
            await _gone(follower, instance_id, incarnation, seen_s)


async def register_and_leave_as_a_process(
    url: str, keyspace: Keyspace, incarnation: str, follower: Follower, seen_s: float
) -> None:
    """A parent's registration with a registrar process of its own."""
    spec = _spec(url, keyspace, "decode-process", incarnation)
    async with Registration(spec) as registration:
        registration.put(instance_record(incarnation), {FIRST: rank_record(incarnation)})
        await registration.wait_registered(seen_s)
        await _seen(follower, spec.instance_id, incarnation, seen_s)
    await _gone(follower, spec.instance_id, incarnation, seen_s)


def _spec(url: str, keyspace: Keyspace, instance_id: str, incarnation: str) -> RegistrarSpec:
    return registrations.spec(
        url,
        incarnation,
        ttl_s=60,
        timeout_s=LEAVE_S,
        cluster=keyspace.cluster,
        instance_id=instance_id,
        log_level="error",
    )


async def _begin(channel: Channel, spec: RegistrarSpec) -> None:
    """All that a parent says first: who it is, its beats, its record with a rank."""
    own, (read_end, write_end) = machine.open_pidfd(os.getpid()), os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        start = Start(spec=spec, parent_pid=os.getpid(), claimed=False, predecessor=None)
        await channel.send(encode(start), own)
        await channel.send(encode(Watch(member=PARENT, what="beats")), read_end)
        os.write(write_end, b".")
    finally:
        for descriptor in (own, read_end, write_end):
            os.close(descriptor)
    instance = codec.encode(instance_record(spec.incarnation)).decode()
    rank = codec.encode(rank_record(spec.incarnation)).decode()
    await channel.send(encode(Want(version=1, instance=instance, ranks={str(FIRST): rank})))


async def _until(channel: Channel, holds: Callable[[Status], bool]) -> None:
    while (frame := await channel.receive()) is not None:
        if holds(decode_status(frame.data)):
            return
    raise SystemExit("a registrar ended too early")


async def _seen(follower: Follower, instance_id: str, incarnation: str, within_s: float) -> None:
    def holds(topology: Topology) -> bool:
        found = topology.instances.get(instance_id)
        return found is not None and found.incarnation == incarnation and found.ready

    await follower.wait_until(holds, within_s)


async def _gone(follower: Follower, instance_id: str, incarnation: str, within_s: float) -> None:
    def holds(topology: Topology) -> bool:
        found = topology.instances.get(instance_id)
        return found is None or found.incarnation != incarnation

    await follower.wait_until(holds, within_s)
