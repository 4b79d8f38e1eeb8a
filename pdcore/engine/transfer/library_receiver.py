"""Decode's end of an engine whose bytes a library moves: registers the region, announces it over a link of ours, and
waits the library's timeout for the fence."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from pdcore.clock import Clock
from pdcore.engine.transfer.engine import Linked, Lost, Revoked, Rung
from pdcore.engine.transfer.library import MovesBytes
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.opening import Parts
from pdcore.engine.transfer.tcp_receiver import TcpReceiver

_GRACE_S: Final = 1.0
"""What the library adds to its timeout for the bytes of our largest call."""


class LibraryReceiver(Parts):
    """See :class:`pdcore.engine.transfer.engine.Receiver`.

    Mutable state: ``_asked`` are the links on which writes were asked for, ``_fencing`` those that ended and the instant
    from which nothing of them lands. A due fence is told by the next ``drain``, for which no descriptor wakes anybody.
    """

    def __init__(self, region: Region, *, name: str, engine: MovesBytes, secret: bytes, clock: Clock) -> None:
        self._region = region
        self._name = name
        self._engine = engine
        self._secret = secret
        self._fence_s = engine.timeout_s + _GRACE_S
        self._clock = clock
        self._asked: set[bytes] = set()
        self._fencing: deque[tuple[float, Lost]] = deque()

    def enter(self, stack: ExitStack) -> None:
        """The library, its memory, and the link that announces it."""
        stack.callback(self._engine.close)
        self._engine.open()
        base = self._region.address
        self._engine.register(base, self._region.nbytes)
        about: dict[str, str | int] = {"session": self._engine.session, "base": base}
        self._control = stack.enter_context(
            TcpReceiver(self._region, name=self._name, secret=self._secret, clock=self._clock, about=about)
        )

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """Announce the memory over a link of ours."""
        self._control.connect(endpoint, token)

    def disconnect(self, token: bytes) -> None:
        """Close the link."""
        self._control.disconnect(token)
        self._asked.discard(token)

    def allow(self, token: bytes, seq: int) -> None:
        """From now on the end of this link is no fence by itself. Our own link never lets a frame land."""
        self._asked.add(token)

    def revoke(self, token: bytes, seq: int) -> bool:
        """Proven only when nothing was ever asked, or ``Lost`` came."""
        return token not in self._asked

    def drain(self) -> list[Linked | Rung | Revoked | Lost]:
        """Bells at once, losses when they are fences."""
        news: list[Linked | Rung | Revoked | Lost] = []
        now = self._clock.now()
        for item in self._control.drain():
            if isinstance(item, Lost) and item.token in self._asked:
                self._fencing.append((now + self._fence_s, item))
            else:
                news.append(item)
        while self._fencing and self._fencing[0][0] <= now:
            _due, lost = self._fencing.popleft()
            self._asked.discard(lost.token)
            news.append(lost)
        return news

    def pollables(self) -> list[int]:
        """Of the link."""
        return self._control.pollables()
