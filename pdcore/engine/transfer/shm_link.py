"""What both ends of an ``shm`` link agree on: the socket, the offer, the doorbell record."""

from __future__ import annotations

import os
import socket
import struct
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pdcore.engine.transfer.wire import Count, Token

NAME: Final = "shm"
LINK_VERSION: Final = 1
MAX_RECORD: Final = 4096
BELL: Final = struct.Struct("<Q")
SOON: Final = 0
"""Rung instead of a seq, which begin at 1: a slot is about to be written."""
_CREDENTIALS: Final = struct.Struct("iII")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Decode's first and only record, with exactly one file descriptor beside it."""

    version: Count
    token: Token
    nbytes: Annotated[int, Meta(ge=1, le=1 << 50)]


encode_offer: Final = msgspec.msgpack.Encoder().encode
decode_offer: Final = msgspec.msgpack.Decoder(Offer).decode


def open_socket() -> socket.socket:
    """A non-blocking unix socket that keeps records whole."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as our user (as the kernel noted it at connect)."""
    _pid, uid = _credentials(connection)
    return uid == os.geteuid()


def peer_name(connection: socket.socket) -> str:
    """The process at the other end, for people."""
    pid, uid = _credentials(connection)
    return f"process {pid} of user {uid}"


def _credentials(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return pid, uid


@cache
def boot_id() -> str:
    """This boot of this machine: memory cannot be passed beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
