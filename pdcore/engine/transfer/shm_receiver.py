"""Decode's end of ``shm``: offers the memory, hears bells, sees the fence."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.engine import Announced, Lost, Rung
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.shm_link import (
    BELL,
    LINK_VERSION,
    NAME,
    SOON,
    Offer,
    boot_id,
    encode_offer,
    open_socket,
    peer_name,
    same_user,
)
from pdcore.errors import PeerGone, TransferTimeout
from pdcore.telemetry import logger

_RECORDS_PER_DRAIN: Final = 1024


class ShmReceiver:
    """See :class:`pdcore.engine.transfer.engine.Receiver`."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._links: dict[bytes, socket.socket] = {}
        self._tokens: dict[int, bytes] = {}
        self._blame = Blame(logger(__name__), "malformed bell")

    def __enter__(self) -> Self:
        self._epoll = select.epoll()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for token in list(self._links):
            self.disconnect(token)
        self._epoll.close()

    @property
    def malformed(self) -> int:
        """Records that are no bells."""
        return self._blame.malformed

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """Connect and offer in one go; nothing is kept when it fails."""
        path = _socket_path(endpoint)
        link = open_socket()
        try:
            link.connect(path)
            if not same_user(link):
                raise PeerGone(f"{path} belongs to another user", in_doubt=False)
            offer = Offer(version=LINK_VERSION, token=token, nbytes=self._region.nbytes)
            socket.send_fds(link, [encode_offer(offer)], [self._region.fd])
        except BlockingIOError as error:
            link.close()
            raise TransferTimeout(f"{path} takes no connection now", in_doubt=False) from error
        except OSError as error:
            link.close()
            raise PeerGone(f"cannot connect to {path}: {error.strerror or error}", in_doubt=False) from error
        except BaseException:
            link.close()
            raise
        self._links[token] = link
        self._tokens[link.fileno()] = token
        self._epoll.register(link.fileno(), select.EPOLLIN)

    def disconnect(self, token: bytes) -> None:
        """Close our end; the peer then unmaps."""
        link = self._links.pop(token, None)
        if link is not None:
            self._epoll.unregister(link.fileno())
            del self._tokens[link.fileno()]
            link.close()

    def allow(self, token: bytes, seq: int) -> None:
        """Nobody looks at what a peer stores."""

    def revoke(self, token: bytes, seq: int) -> bool:
        """Nothing here can stop a store."""
        return False

    def drain(self) -> list[Announced | Rung | Lost]:
        """Bells and fences of all links; a lost link is closed here."""
        return [news for fd, mask in self._epoll.poll(0) for news in self._read(self._tokens[fd], mask)]

    def pollables(self) -> list[int]:
        """One epoll descriptor for all links."""
        return [self._epoll.fileno()]

    def _read(self, token: bytes, mask: int) -> list[Announced | Rung | Lost]:
        """Up to the end of what is there. Only a full hang-up is the fence: an empty record or a half-closed socket
        also reads as nothing, and its sender may still hold the mapping."""
        news: list[Announced | Rung | Lost] = []
        for _ in range(_RECORDS_PER_DRAIN):
            try:
                record = self._links[token].recv(BELL.size + 1)
            except BlockingIOError:
                return news
            except ConnectionError:
                record = b""
            if not record and mask & select.EPOLLHUP:
                self.disconnect(token)
                return [*news, Lost(token)]
            if len(record) == BELL.size:
                seq = BELL.unpack(record)[0]
                news.append(Announced(token) if seq == SOON else Rung(token, seq))
            else:
                self._blame(peer_name(self._links[token]), f"a record of {len(record)} bytes")
                return news
        return news


def _socket_path(endpoint: Mapping[str, object]) -> str:
    path = endpoint.get("socket")
    if endpoint.get("engine") != NAME or not isinstance(path, str) or not path.startswith("/"):
        raise PeerGone(f"its transfer endpoint {dict(endpoint)!r} is not one of {NAME}", in_doubt=False)
    if endpoint.get("boot_id") != boot_id():
        raise PeerGone("it runs on another machine, which shm cannot reach", in_doubt=False)
    if "\0" in path or len(path.encode()) > 107:
        raise PeerGone(f"its socket path {path!r} is not usable", in_doubt=False)
    return path
