"""The seam between the sessions and whatever moves bytes (shared memory, TCP, RDMA).

Addresses are offsets into a region, never pointers. A *link* ties one decode rank's memory to one prefill rank and is
named by decode's random token. Losing a link is the fence: a receiver is told ``Lost`` only when the peer can never
write through it again, and nothing else may be taken for that proof.

A write that raised with ``in_doubt`` may land later. Two writes in one call may land in any order; a write that
returned is visible to the peer before a later call starts (``requires_doorbell`` says if the peer needs ``ring`` too).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pdcore.engine.transfer.plan import WriteOps


@dataclass(frozen=True, slots=True)
class Linked:
    """Sender: a decode rank registered ``nbytes`` of memory under ``token``."""

    token: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Rung:
    """Receiver: the peer finished the slot of ``seq``, and everything it wrote before is visible."""

    token: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Receiver: fenced, the peer can never write again. Sender: the decode rank is gone; ``release`` the link."""

    token: bytes


class Owned(Protocol):
    """Something opened by ``with``; its constructor opens nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Receiver(Owned, Protocol):
    """Decode's side: registered memory and the links to those who write into it. Nothing here blocks."""

    @property
    def memory(self) -> memoryview:
        """The registered region, zeroed once when it was made."""
        ...

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """Offer the memory to the sender at ``endpoint``.

        Raises ``PeerGone`` when nobody can be there, ``TransferTimeout`` when it should be tried again later.
        """
        ...

    def disconnect(self, token: bytes) -> None:
        """Give up a link that no write was ever asked on, or that was lost."""
        ...

    def drain(self) -> list[Rung | Lost]:
        """What the links said since the last call; rings of a link come before its loss."""
        ...

    def pollables(self) -> list[int]:
        """File descriptors that become readable when ``drain`` has something."""
        ...


class Sender(Owned, Protocol):
    """Prefill's side: takes links, writes through them. ``write…`` and ``ring`` may be called from any thread."""

    def endpoint(self) -> dict[str, object]:
        """What a receiver needs to connect; JSON types only."""
        ...

    def drain(self) -> Sequence[Linked | Lost]:
        """Links that came and went since the last call."""
        ...

    def pollables(self) -> list[int]:
        """File descriptors that become readable when ``drain`` has something."""
        ...

    def write(self, token: bytes, ops: WriteOps) -> None:
        """Copy from the source region; returns when visible to the peer. Raises a ``PeerError``."""
        ...

    def write_bytes(self, token: bytes, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset`` of the peer's region, on the same terms as ``write``."""
        ...

    def ring(self, token: bytes, seq: int) -> bool:
        """Tell the peer to look; False when that would block (ring again later), ``PeerGone`` when it is gone."""
        ...

    def release(self, token: bytes) -> None:
        """Forget the peer's memory, then close the link. The caller has no write in flight on it."""
        ...


class TransferEngine(Protocol):
    """One way of moving bytes."""

    @property
    def name(self) -> str:
        """How compat and endpoints call it."""
        ...

    @property
    def requires_doorbell(self) -> bool:
        """Whether a slot counts only after its ``Rung``."""
        ...

    def receiver(self, nbytes: int) -> Receiver:
        """An unopened receiver with ``nbytes`` of memory."""
        ...

    def sender(self, source: memoryview, runtime_dir: Path) -> Sender:
        """An unopened sender that copies out of ``source`` and keeps its sockets in ``runtime_dir`` (0700)."""
        ...
