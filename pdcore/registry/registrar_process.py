"""One life of a registrar process, seen from its parent: start it, tell it everything, read its statuses, reap it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pdcore.registry import machine
from pdcore.registry.channel import Channel
from pdcore.registry.registrar_messages import (
    Leave,
    RegistrarSpec,
    Start,
    Status,
    Want,
    Watch,
    decode_status,
    encode,
)

END_S: Final = 5.0
"""How long a registrar may take to end once its channel is closed."""


@dataclass(slots=True)
class Wish:
    """All that a registrar has to be told, in the order of the fields; ``news`` is set when one changes.

    ``watches`` only grows and owns its descriptors; ``want`` is replaced whole.
    """

    spec: RegistrarSpec
    claimed: bool = False
    predecessor: str | None = None
    watches: list[tuple[Watch, int]] = field(default_factory=list)
    want: Want | None = None
    leave: Leave | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


async def live(wish: Wish, on_start: Callable[[int], None], on_status: Callable[[Status], None]) -> int:
    """Run one registrar until it ends by itself or this is cancelled; its exit status. Raises OSError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await _spawn(theirs)
        theirs.close()
        on_start(process.pid)
        try:
            with Channel(ours) as channel:
                await _talk(channel, wish, on_status)
        finally:
            status = await _reap(process)
    return status


async def _spawn(theirs: socket.socket) -> asyncio.subprocess.Process:
    """A session of its own keeps signals to the parent's process group away from it."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pdcore.registry.registrar", "--fd", str(theirs.fileno())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )


async def _talk(channel: Channel, wish: Wish, on_status: Callable[[Status], None]) -> None:
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_tell(channel, wish), name="tell the registrar")
        while (frame := await channel.receive()) is not None:
            on_status(decode_status(frame.data))
        telling.cancel()


async def _tell(channel: Channel, wish: Wish) -> None:
    """Say everything once, then what is new."""
    try:
        await _tell_start(channel, wish)
        watched, version, leaving = 0, 0, False
        while True:
            wish.news.clear()
            for watch, descriptor in wish.watches[watched:]:
                await channel.send(encode(watch), descriptor)
                watched += 1
            if wish.want is not None and wish.want.version > version:
                version = wish.want.version
                await channel.send(encode(wish.want))
            if wish.leave is not None and not leaving:
                leaving = True
                await channel.send(encode(wish.leave))
            await wish.news.wait()
    except ConnectionError:
        return  # it has ended, which the reader sees as well


async def _tell_start(channel: Channel, wish: Wish) -> None:
    start = Start(spec=wish.spec, parent_pid=os.getpid(), claimed=wish.claimed, predecessor=wish.predecessor)
    pidfd = machine.open_pidfd(os.getpid())
    try:
        await channel.send(encode(start), pidfd)
    finally:
        os.close(pidfd)


async def _reap(process: asyncio.subprocess.Process) -> int:
    """Its exit status, and no process left behind, also when this is cancelled."""
    try:
        return await _wait_or_kill(process)
    except asyncio.CancelledError:
        await _wait_or_kill(process)
        raise


async def _wait_or_kill(process: asyncio.subprocess.Process) -> int:
    """Its channel is closed, so it ends by itself; one that does not is killed."""
    try:
        async with asyncio.timeout(END_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()
