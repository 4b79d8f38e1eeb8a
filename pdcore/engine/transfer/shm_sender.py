"""Prefill's end of ``shm``: takes offers, maps them, copies, rings, and unmaps before it closes."""

from __future__ import annotations

import array
import ctypes
import os
import select
import socket
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from pdcore.engine.transfer import memory
from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.plan import WriteOps, check_bounds
from pdcore.engine.transfer.shm_link import (
    BELL,
    LINK_VERSION,
    MAX_RECORD,
    NAME,
    SOON,
    Offer,
    boot_id,
    decode_offer,
    open_socket,
    peer_name,
    same_user,
)
from pdcore.errors import ConfigError, PeerGone, RejectedByPeer
from pdcore.telemetry import logger

_UNOFFERED_MOST: Final = 64
_ACCEPTS_PER_DRAIN: Final = 64
_FDS_MOST: Final = 4
_INLINE_BYTES: Final = 4 << 20


@dataclass(slots=True)
class _Link:
    connection: socket.socket
    mapping: memory.Mapping
    lost: bool = False


class ShmSender:
    """See :class:`pdcore.engine.transfer.engine.Sender`.

    Mutable state: ``_unoffered`` connections (bounded, oldest closed first), ``_links`` by token, ``_tokens`` by
    file descriptor. Only ``drain`` and ``release`` change them; writers in other threads only look a link up.
    """

    def __init__(self, source: memoryview, runtime_dir: Path) -> None:
        self._source = source
        self._runtime_dir = runtime_dir
        self._unoffered: OrderedDict[int, socket.socket] = OrderedDict()
        self._links: dict[bytes, _Link] = {}
        self._tokens: dict[int, bytes] = {}
        self._path = ""
        self._blame = Blame(logger(__name__), "malformed link")

    def __enter__(self) -> Self:
        self._path = _private_path(self._runtime_dir)
        self._source_address = memory.address_of(self._source)
        self._listener = open_socket()
        try:
            self._listener.bind(self._path)
            self._listener.listen(128)
        except OSError as error:
            self._listener.close()
            raise ConfigError(f"cannot listen on {self._path}: {error.strerror or error}") from error
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for token in list(self._links):
            self.release(token)
        for fd in list(self._unoffered):
            self._drop(fd)
        self._epoll.close()
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)

    @property
    def malformed(self) -> int:
        """Connections and records that were not what they should be."""
        return self._blame.malformed

    def endpoint(self) -> dict[str, object]:
        """Where decode ranks of this machine connect."""
        return {"engine": NAME, "version": LINK_VERSION, "boot_id": boot_id(), "socket": self._path}

    def pollables(self) -> list[int]:
        """One epoll descriptor for listener and links."""
        return [self._epoll.fileno()]

    def drain(self) -> Sequence[Linked | Lost]:
        """Accept, read offers, notice ends."""
        news: list[Linked | Lost] = []
        for fd, _mask in self._epoll.poll(0):
            if fd == self._listener.fileno():
                news += self._accept()
            elif fd in self._unoffered:
                news += self._take_offer(fd)
            else:
                news += self._listen(self._tokens[fd])
        return news

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """Copy every row; the interpreter lock is free while bytes move."""
        link = self._link(token)
        try:
            check_bounds(ops, self._source.nbytes, link.mapping.nbytes)
        except ValueError as error:
            raise RejectedByPeer(str(error), in_doubt=False) from error
        source, target = self._source_address, link.mapping.address
        for src_off, dst_off, length in ops.rows():
            ctypes.memmove(target + dst_off, source + src_off, length)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """Copy ``data`` itself."""
        link = self._link(token)
        if not 0 <= offset <= link.mapping.nbytes - len(data):
            raise RejectedByPeer(f"offset {offset} is outside the peer's region", in_doubt=False)
        ctypes.memmove(link.mapping.address + offset, data, len(data))

    def inline_bytes(self, token: bytes) -> int:
        """A copy waits for nobody."""
        return _INLINE_BYTES

    def ring(self, token: bytes, seq: int) -> bool:
        """Eight bytes on the link; never blocks."""
        try:
            self._link(token).connection.send(BELL.pack(seq), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerGone(f"the decode rank hung up: {error.strerror or error}", in_doubt=False) from error
        return True

    def announce(self, token: bytes) -> None:
        """A bell before the bell."""
        with suppress(PeerGone):
            self.ring(token, SOON)

    def release(self, token: bytes) -> None:
        """Unmap, then close: what the peer reads as the fence."""
        link = self._links.pop(token, None)
        if link is None:
            return
        link.mapping.unmap()
        if self._tokens.pop(link.connection.fileno(), None) is not None:
            self._epoll.unregister(link.connection.fileno())
        link.connection.close()

    def _link(self, token: bytes) -> _Link:
        link = self._links.get(token)
        if link is None or link.lost:
            raise PeerGone("the decode rank is gone", in_doubt=False)
        return link

    def _accept(self) -> list[Linked | Lost]:
        news: list[Linked | Lost] = []
        for _ in range(_ACCEPTS_PER_DRAIN):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                break
            connection.setblocking(False)
            if not same_user(connection):
                self._blame(peer_name(connection), "it belongs to another user")
                connection.close()
                continue
            self._unoffered[connection.fileno()] = connection
            self._epoll.register(connection.fileno(), select.EPOLLIN)
            news += self._take_offer(connection.fileno())
            while len(self._unoffered) > _UNOFFERED_MOST:
                self._drop(next(iter(self._unoffered)))
        return news

    def _take_offer(self, fd: int) -> list[Linked | Lost]:
        connection = self._unoffered[fd]
        try:
            record, fds, flags = _receive(connection)
        except BlockingIOError:
            return []
        except ConnectionError:
            self._drop(fd)
            return []
        try:
            offer, mapping = self._map(record, fds, flags)
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            if record:
                self._blame(peer_name(connection), str(error))
            self._drop(fd)
            return []
        finally:
            for descriptor in fds:
                os.close(descriptor)
        del self._unoffered[fd]
        self._links[offer.token] = _Link(connection, mapping)
        self._tokens[fd] = offer.token
        return [Linked(offer.token, offer.nbytes)]

    def _map(self, record: bytes, fds: Sequence[int], flags: int) -> tuple[Offer, memory.Mapping]:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) != 1:
            raise ValueError("an offer is one record with one descriptor")
        offer = decode_offer(record)
        if offer.version != LINK_VERSION or offer.token in self._links:
            raise ValueError("unknown version or a token in use")
        memory.check(fds[0], offer.nbytes)
        return offer, memory.Mapping(fds[0], offer.nbytes)

    def _listen(self, token: bytes) -> list[Linked | Lost]:
        link = self._links[token]
        try:
            record, fds, _flags = _receive(link.connection)
        except BlockingIOError:
            return []
        except ConnectionError:
            record, fds = b"", []
        for descriptor in fds:
            os.close(descriptor)
        if record or fds:
            self._blame(peer_name(link.connection), "a record after its offer")
            return []
        link.lost = True
        self._epoll.unregister(link.connection.fileno())
        del self._tokens[link.connection.fileno()]
        return [Lost(token)]

    def _drop(self, fd: int) -> None:
        connection = self._unoffered.pop(fd)
        self._epoll.unregister(fd)
        connection.close()


def _receive(connection: socket.socket) -> tuple[bytes, list[int], int]:
    """One record with its descriptors; never more than a few of them are taken in."""
    room = socket.CMSG_SPACE(_FDS_MOST * array.array("i").itemsize)
    record, ancillary, flags, _address = connection.recvmsg(MAX_RECORD, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return record, list(fds), flags


def _private_path(runtime_dir: Path) -> str:
    """Where to listen; ``ConfigError`` unless nobody else can enter the directory."""
    status = os.stat(runtime_dir)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{runtime_dir} must be a directory of this user with mode 0700")
    path = str(runtime_dir.resolve() / f"kv-{os.getpid()}-{threading.get_native_id()}.sock")
    if len(path.encode()) > 107:
        raise ConfigError(f"{path} is too long for a unix socket")
    return path
