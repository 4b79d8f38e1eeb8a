"""Decode's end of ``tcp``: one thread reads every link, straight into the region.

The thread alone touches sockets and the region. The loop's thread hands it links to open and to close, says which seqs
may land, and takes its news. That is the fence: nothing of a peer lands but by this thread, which asks before every
piece that it reads whether the seq is still allowed, and reads the rest away when it is not.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from pdcore.clock import Clock
from pdcore.engine.transfer import sockets, tcp_link
from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.engine import Linked, Lost, Revoked, Rung
from pdcore.engine.transfer.inbound import Ended, Inbound, Introduction
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.tcp_link import Malformed
from pdcore.telemetry import logger

_TICK_S: Final = 1.0

News = Linked | Rung | Revoked | Lost


class TcpReceiver:
    """See :class:`pdcore.engine.transfer.engine.Receiver`.

    Mutable state: ``_links`` by token is the loop's; ``_open`` by file descriptor is the thread's; ``_orders`` (links to
    open or close) and ``_news`` pass between them.
    """

    def __init__(
        self,
        region: Region,
        *,
        name: str,
        secret: bytes,
        clock: Clock,
        about: Mapping[str, str | int] | None = None,
    ) -> None:
        self._region = region
        self._name = name
        self._secret = secret
        self._clock = clock
        self._about = dict(about or {})
        self._links: dict[bytes, Inbound] = {}
        self._open: dict[int, Inbound] = {}
        self._orders: deque[Inbound] = deque()
        self._news: deque[News] = deque()
        self._ending = False
        self._log = logger(__name__)
        self._blame = Blame(self._log, "malformed frame")

    def __enter__(self) -> Self:
        self._has_news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._has_orders = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._has_orders, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="kv-receive", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        os.eventfd_write(self._has_orders, 1)
        self._thread.join()
        for link in (*self._open.values(), *self._orders):
            link.connection.close()
        self._epoll.close()
        os.close(self._has_orders)
        os.close(self._has_news)

    @property
    def malformed(self) -> int:
        """Links cut because of what came over them."""
        return self._blame.malformed

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """Start connecting; ``Linked`` follows, or ``Lost``."""
        where = tcp_link.read_endpoint(endpoint, self._name)
        introduction = Introduction(
            token=token,
            nbytes=self._region.nbytes,
            key=tcp_link.link_key(where.key, self._secret),
            about=self._about,
        )
        connection = sockets.start_connecting(where.host, where.port)
        link = Inbound(
            connection,
            f"{where.host}:{where.port}",
            introduction,
            self._region.memory,
            until=self._clock.now() + sockets.LINK_S,
            tell=self._tell,
        )
        self._links[token] = link
        self._order(link)

    def disconnect(self, token: bytes) -> None:
        """Nothing more lands, and the thread closes the socket."""
        link = self._links.pop(token, None)
        if link is not None:
            link.gate.close()
            self._order(link)

    def allow(self, token: bytes, seq: int) -> None:
        """See the module."""
        if token in self._links:
            self._links[token].gate.allow(seq)

    def revoke(self, token: bytes, seq: int) -> bool:
        """See the module. A link that is gone proves it too."""
        return token not in self._links or self._links[token].gate.revoke(seq)

    def drain(self) -> list[News]:
        """What the thread said. A link that was given up meanwhile says nothing more."""
        try:
            os.eventfd_read(self._has_news)
        except BlockingIOError:
            return []
        news = [self._news.popleft() for _ in range(len(self._news))]
        heard = []
        for item in news:
            if item.token in self._links:
                heard.append(item)
                if isinstance(item, Lost):
                    del self._links[item.token]
        return heard

    def pollables(self) -> list[int]:
        """Readable when the thread said something."""
        return [self._has_news]

    def _order(self, link: Inbound) -> None:
        self._orders.append(link)
        os.eventfd_write(self._has_orders, 1)

    # In the thread

    def _tell(self, news: News) -> None:
        self._news.append(news)
        os.eventfd_write(self._has_news, 1)

    def _run(self) -> None:
        while not self._ending:
            for fd, _mask in self._epoll.poll(_TICK_S):
                if fd == self._has_orders:
                    self._obey()
                elif fd in self._open:
                    self._advance(self._open[fd])
            now = self._clock.now()
            for link in [link for link in self._open.values() if link.until <= now]:
                self._end(link, "cannot be reached: it does not take the link")

    def _obey(self) -> None:
        os.eventfd_read(self._has_orders)
        for _ in range(len(self._orders)):
            link = self._orders.popleft()
            fd = link.connection.fileno()
            if not link.gate.closed:
                self._open[fd] = link
                self._epoll.register(fd, link.mask)
                self._advance(link)
            elif fd in self._open:
                self._end(link, "was given up")
            else:
                link.connection.close()

    def _advance(self, link: Inbound) -> None:
        try:
            wanted = link.advance()
            if wanted != link.mask:
                link.mask = wanted
                self._epoll.modify(link.connection.fileno(), wanted)
        except Ended as ended:
            self._end(link, str(ended))
        except OSError as error:
            what = "is gone" if link.linked else "cannot be reached"
            self._end(link, f"{what}: {sockets.reason(error)}")
        except Malformed as error:
            self._blame(link.peer, str(error))
            self._end(link, f"sent nonsense over the KV link: {error}")
        except Exception as error:
            self._log.exception("reading a KV link broke", peer=link.peer)
            self._end(link, f"could not be read: {error!r}")

    def _end(self, link: Inbound, why: str) -> None:
        """From here on nothing of this peer can land."""
        link.gate.close()
        del self._open[link.connection.fileno()]
        self._epoll.unregister(link.connection.fileno())
        link.connection.close()
        self._tell(Lost(link.introduction.token, why))
