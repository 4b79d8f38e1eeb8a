"""Prefill's end of an engine whose bytes a library moves: checks what that does not, calls it in the writers' threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pdcore.clock import Clock
from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.library import MovesBytes
from pdcore.engine.transfer.memory import address_of
from pdcore.engine.transfer.pages import PAGE_BYTES, pages_beside
from pdcore.engine.transfer.plan import Buffer, WriteOps, check_bounds
from pdcore.engine.transfer.tcp_sender import TcpSender
from pdcore.errors import PeerError, PeerGone, RejectedByPeer, TransferTimeout


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a decode rank's region begins in its own address space."""

    session: str
    base: int
    nbytes: int


class LibrarySender:
    """See :class:`pdcore.engine.transfer.engine.Sender`.

    Mutable state: ``_targets`` by token, changed by the loop's thread only; ``_pages`` (registered memory for records,
    free ones) and ``_doubtful`` (by token, pages that a write in doubt may still be read from), under ``_lock``.
    """

    def __init__(
        self, source: Buffer, *, name: str, control: TcpSender, engine: MovesBytes, clock: Clock
    ) -> None:
        self._source = source
        self._name = name
        self._control = control
        self._engine = engine
        self._clock = clock
        self._targets: dict[bytes, _Target] = {}
        self._lock = threading.Lock()
        self._pages: list[Buffer] = []
        self._doubtful: dict[bytes, list[Buffer]] = {}
        self._memory = pages_beside(source)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._engine.close)
            self._engine.open()
            self._base = address_of(self._source)
            self._engine.register(self._base, self._source.nbytes)
            stack.enter_context(self._control)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def endpoint(self) -> dict[str, object]:
        """Where decode ranks announce their memory."""
        return self._control.endpoint()

    def pollables(self) -> list[int]:
        """Of the links."""
        return self._control.pollables()

    def drain(self) -> Sequence[Linked | Lost]:
        """Of the links. An announcement without an address for the library is no link."""
        news: list[Linked | Lost] = []
        for item in self._control.drain():
            if isinstance(item, Linked):
                about = self._control.about(item.token)
                session, base = about.get("session"), about.get("base")
                if not isinstance(session, str) or not isinstance(base, int):
                    self._control.release(item.token)
                    continue
                self._targets[item.token] = _Target(session, base, item.nbytes)
            elif item.token not in self._targets:
                continue
            news.append(item)
        return news

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """One batch; its rows should be coalesced, because the library moves one after the other."""
        target = self._target(token)
        try:
            check_bounds(ops, self._source.nbytes, target.nbytes)
        except ValueError as error:
            raise RejectedByPeer(str(error), in_doubt=False) from error
        if len(ops):
            self._memory.settle()
            sources = (ops.src_off + self._base).tolist()
            self._call(target, sources, (ops.dst_off + target.base).tolist(), ops.length.tolist())

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """By way of a registered page, which a write in doubt keeps until the link is released."""
        target = self._target(token)
        if not 0 <= offset <= target.nbytes - len(data) or len(data) > PAGE_BYTES:
            raise RejectedByPeer(
                f"{len(data)} bytes at {offset} are outside the peer's region", in_doubt=False
            )
        page = self._take_page()
        self._memory.put(page, data)
        try:
            self._call(target, [address_of(page)], [target.base + offset], [len(data)])
        except PeerError:
            with self._lock:
                self._doubtful.setdefault(token, []).append(page)
            raise
        with self._lock:
            self._pages.append(page)

    def inline_bytes(self, token: bytes) -> int:
        """None: the library waits for the peer."""
        return 0

    def ring(self, token: bytes, seq: int) -> bool:
        """Over our own link; what was written before has been confirmed."""
        return self._control.bell(token, seq)

    def announce(self, token: bytes) -> None:
        """Not over this."""

    def release(self, token: bytes) -> None:
        """Close the link."""
        self._targets.pop(token, None)
        with self._lock:
            self._pages += self._doubtful.pop(token, [])
        self._control.release(token)

    def _target(self, token: bytes) -> _Target:
        self._control.check(token)
        target = self._targets.get(token)
        if target is None:
            raise PeerGone("the decode rank is gone", in_doubt=False)
        return target

    def _call(self, target: _Target, sources: list[int], targets: list[int], lengths: list[int]) -> None:
        began = self._clock.now()
        with self._memory.bound():
            done = self._engine.write(target.session, sources, targets, lengths)
        if done:
            return
        if self._clock.now() - began >= self._engine.timeout_s:
            raise TransferTimeout(f"{self._name} had no answer from the decode rank in time", in_doubt=True)
        raise PeerGone(f"{self._name} could not write to the decode rank", in_doubt=True)

    def _take_page(self) -> Buffer:
        with self._lock:
            if self._pages:
                return self._pages.pop()
        page = self._memory.new()
        self._engine.register(address_of(page), PAGE_BYTES)
        return page
