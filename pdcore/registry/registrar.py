"""The registrar: a small process per parent that owns one lease and every key of the parent's instance.

It runs apart from the engine so that a long native call there costs no lease, and a killed parent is reported by
somebody who is still there. This module is the process: it reads what the parent says, runs
:mod:`pdcore.registry.upkeep`, and tells the parent how that goes. It ends when the parent has left or died, when
another start took the claim, or when it may not take it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import socket
from typing import Final

import msgspec

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.errors import ConfigError, Superseded
from pdcore.registry.beats import SILENCE_IN_TTLS
from pdcore.registry.channel import Channel, Frame
from pdcore.registry.claiming import Refused
from pdcore.registry.connect import open_store
from pdcore.registry.processes import Processes
from pdcore.registry.registrar_messages import (
    PARENT,
    Leave,
    Malformed,
    Start,
    Status,
    Want,
    Watch,
    decode_from_parent,
    encode,
)
from pdcore.registry.upkeep import Upkeep

log = telemetry.logger(__name__)

START_S: Final = 10.0
FAREWELL_S: Final = 1.0
EXIT_NOTICE_S: Final = 0.25
"""How long after the channel closed the kernel may take to report the parent's exit."""
LEAVE_UNSAID_S: Final = 10.0
SHORTEST_CALL_S: Final = 0.5


def main() -> None:
    """``python -m pdcore.registry.registrar --fd N``: N is an inherited unix stream socket to the parent."""
    parser = argparse.ArgumentParser(prog="python -m pdcore.registry.registrar", description=main.__doc__)
    parser.add_argument("--fd", type=int, required=True)
    fd: int = parser.parse_args().fd
    # A signal to the whole process group or control group is for the parent, whose end ends this process.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    asyncio.run(serve(socket.socket(fileno=fd), SystemClock()))


async def serve(sock: socket.socket, clock: Clock) -> None:
    """Serve the parent behind ``sock`` until that is over."""
    with Channel(sock) as channel:
        start, parent = await _wait_start(channel)
        spec = start.spec
        telemetry.configure(
            spec.log_format,
            spec.log_level,
            role=spec.role,
            instance_id=spec.instance_id,
            incarnation=spec.incarnation,
        )
        wake = asyncio.Event()
        with Processes(SILENCE_IN_TTLS * spec.ttl_s, clock, on_change=wake.set) as processes:
            processes.watch(PARENT, parent)
            try:
                store = open_store(spec.store.with_timeout(call_timeout_s(spec.store.timeout_s, spec.ttl_s)))
            except ConfigError as error:
                await channel.send(encode(Status(refused=str(error))))
                return
            async with store:
                upkeep = Upkeep(start, store, processes, wake=wake, clock=clock, jitter=random.random)
                await Conversation(channel, upkeep, processes, clock).run()


def call_timeout_s(store_timeout_s: float, ttl_s: int) -> float:
    """Deadline of one call: a keepalive that hangs must leave time for another try before the lease ends."""
    return min(store_timeout_s, max(SHORTEST_CALL_S, ttl_s / 6))


async def _wait_start(channel: Channel) -> tuple[Start, int]:
    """The first message and the parent's pidfd. Raises Malformed, TimeoutError."""
    async with asyncio.timeout(START_S):
        frame = await channel.receive()
    start = None if frame is None else decode_from_parent(frame.data)
    if frame is None or not isinstance(start, Start) or len(frame.descriptors) != 1:
        raise Malformed("the first message is not a start with the parent's pidfd")
    return start, frame.descriptors[0]


class Conversation:
    """Runs the upkeep while listening to the parent and telling it the newest status."""

    def __init__(self, channel: Channel, upkeep: Upkeep, processes: Processes, clock: Clock) -> None:
        self._channel = channel
        self._upkeep = upkeep
        self._processes = processes
        self._clock = clock
        self._last_words: Status | None = None

    async def run(self) -> None:
        """Returns once the upkeep has ended and the parent, if it is still there, knows."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(), name="listen")
            reporting = group.create_task(self._report(), name="report")
            self._last_words = await self._outcome()
            self._upkeep.changed.set()
            listening.cancel()
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await reporting
            except TimeoutError:
                log.info("parent does not listen")

    async def _outcome(self) -> Status:
        try:
            await self._upkeep.run()
        except Superseded as error:
            log.error("superseded; not registering again", holder=error.holder)
            return msgspec.structs.replace(self._upkeep.status, superseded_by=error.holder)
        except Refused as error:
            return msgspec.structs.replace(self._upkeep.status, refused=str(error))
        return self._upkeep.status

    async def _listen(self) -> None:
        while (frame := await self._channel.receive()) is not None:
            self._hear(frame)
        await self._clock.sleep(EXIT_NOTICE_S)
        if not self._processes.has_exited(PARENT):
            self._upkeep.leave(Leave(reason="left", timeout_s=LEAVE_UNSAID_S))

    def _hear(self, frame: Frame) -> None:
        match decode_from_parent(frame.data):
            case Watch(member=member, what=what) if len(frame.descriptors) == 1:
                add = self._processes.watch if what == "process" else self._processes.listen
                add(member, frame.descriptors[0])
            case Want() as want:
                self._upkeep.want(want)
            case Leave() as leave:
                self._upkeep.leave(leave)
            case other:
                raise Malformed(f"{type(other).__name__} with {len(frame.descriptors)} descriptors")

    async def _report(self) -> None:
        """One frame after the other, never cut short, so that the last one can be read."""
        while self._last_words is None:
            await self._upkeep.changed.wait()
            self._upkeep.changed.clear()
            try:
                await self._channel.send(encode(self._last_words or self._upkeep.status))
            except ConnectionError:
                return  # the parent is gone, which the listener sees as well


if __name__ == "__main__":
    main()
