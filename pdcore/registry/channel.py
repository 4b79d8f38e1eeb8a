"""Framed messages over a unix stream socket, with file descriptors riding along (SCM_RIGHTS).

A frame is ``length u32, descriptors u8`` in network order, then the bytes. The kernel hands descriptors over in the
order in which they were sent and never merges two sends that carry some, so they are matched to frames by count.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from pdcore.registry.registrar_messages import MAX_MESSAGE_BYTES, Malformed

_HEADER: Final = struct.Struct("!IB")
_CHUNK: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 16
_DESCRIPTOR: Final = struct.Struct("i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR.size)


class Frame(NamedTuple):
    """One message and the descriptors that came with it; the receiver owns those."""

    data: bytes
    descriptors: tuple[int, ...]


class Channel:
    """One end. Takes ownership of ``sock``. One task may send and one may receive at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def __enter__(self) -> Self:
        self._sock.setblocking(False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._sock.close()

    async def send(self, data: bytes, *descriptors: int) -> None:
        """Send one frame; the descriptors stay the caller's. Raises ConnectionError when the other end is gone."""
        rest = memoryview(_HEADER.pack(len(data), len(descriptors)) + data)
        while rest:
            try:
                sent = (
                    socket.send_fds(self._sock, [rest], descriptors) if descriptors else self._sock.send(rest)
                )
            except BlockingIOError:
                await self._writable()
                continue
            rest, descriptors = rest[sent:], ()

    async def receive(self) -> Frame | None:
        """The next frame, None when the other end is gone. Raises :class:`Malformed`."""
        while (frame := self._take()) is None:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_CHUNK, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                await self._readable()
                continue
            except ConnectionError:
                return None
            self._descriptors.extend(_descriptors_in(ancillary))
            if not data:
                return None
            self._buffer += data
        return frame

    def _take(self) -> Frame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES or count > _MAX_DESCRIPTORS:
            raise Malformed(f"a frame of {length} bytes with {count} descriptors")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        if len(self._descriptors) < count:
            raise Malformed(f"a frame promised {count} descriptors and brought {len(self._descriptors)}")
        data = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return Frame(data, tuple(self._descriptors.popleft() for _ in range(count)))

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._sock.fileno(), _settle, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._sock.fileno())

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._sock.fileno(), _settle, ready)
        try:
            await ready
        finally:
            loop.remove_writer(self._sock.fileno())


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            yield from (
                fd
                for (fd,) in _DESCRIPTOR.iter_unpack(data[: len(data) // _DESCRIPTOR.size * _DESCRIPTOR.size])
            )


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
