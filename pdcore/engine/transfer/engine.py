"""The seam between the sessions and whatever moves bytes (shared memory, TCP, RDMA).

Addresses are offsets into a region, never pointers. A *link* ties one decode rank's memory to one prefill rank and is
named by decode's random token. Losing a link is the fence: a receiver is told ``Lost`` only when the peer can never
write through it again, and nothing else may be taken for that proof.

A write that raised with ``in_doubt`` may land later. Two writes in one call may land in any order; a write that
returned is visible to the peer before a later call starts (``requires_doorbell`` says if the peer needs ``ring`` too).

Every write names the seq it belongs to. Decode allows a seq before it asks for it and revokes it when it wants nothing
of it any more. An engine whose receiver looks at every write itself (``can_revoke``) then proves that no write of the
seq lands later, however late it comes; with the others only ``Lost`` proves that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pdcore.engine.transfer.memory import PAGE, Region
from pdcore.engine.transfer.plan import Buffer, WriteOps


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCaps:
    """What an engine can do. ``cross_host``: reach another machine. ``can_revoke``: prove that a revoked seq lands no
    more while its link lives. ``requires_doorbell``: a slot counts only after its ``Rung``. ``alignment``: memory that
    it is to read or write begins at a multiple of so many bytes. ``reaches_devices``: that memory may be a device's."""

    cross_host: bool
    can_revoke: bool
    requires_doorbell: bool
    alignment: int = PAGE
    reaches_devices: bool = False


@dataclass(frozen=True, slots=True)
class Linked:
    """Sender: a decode rank registered ``nbytes`` of memory under ``token``. Receiver: the sender took the link; said
    only by engines that cannot know it when ``connect`` returns."""

    token: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Rung:
    """Receiver: the peer finished the slot of ``seq``, and everything it wrote before is visible."""

    token: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Announced:
    """Receiver: the peer is about to finish a slot, most likely."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Revoked:
    """Receiver: the ``revoke`` that returned False is done; no write of ``seq`` lands any more."""

    token: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Receiver: fenced, the peer can never write again. Sender: the decode rank is gone; ``release`` the link.
    ``why`` is a predicate for people."""

    token: bytes
    why: str = field(default="is gone", compare=False)


class Owned(Protocol):
    """Something opened by ``with``; its constructor opens nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Receiver(Owned, Protocol):
    """Decode's side: the links to those who write into its region. Nothing here blocks."""

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """Offer the memory to the sender at ``endpoint``; a failure that shows later comes as ``Lost``.

        Raises ``PeerGone`` when nobody can be there, ``TransferTimeout`` when it should be tried again later.
        """
        ...

    def disconnect(self, token: bytes) -> None:
        """Give up a link that no write was ever asked on, or that was lost."""
        ...

    def allow(self, token: bytes, seq: int) -> None:
        """Let writes of ``seq`` land that come over this link; say so before the peer is asked for it."""
        ...

    def revoke(self, token: bytes, seq: int) -> bool:
        """Let no further write of ``seq`` land. True: proven. False: with ``can_revoke`` a write is landing right now
        and ``Revoked`` follows; without, only the peer's own word or ``Lost`` tells. Once per allowed seq, also after
        its KV arrived."""
        ...

    def drain(self) -> Sequence[Linked | Announced | Rung | Revoked | Lost]:
        """What the links said since the last call; a link's ``Lost`` is the last about it and closes it."""
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

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """Copy from the source region for ``seq``; returns when visible to the peer, within the engine's own deadline.

        Raises a ``PeerError``: ``RejectedByPeer`` when the bounds or a revoked seq forbid it.
        """
        ...

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """Put ``data`` at ``offset`` of the peer's region, on the same terms as ``write``."""
        ...

    def inline_bytes(self, token: bytes) -> int:
        """Up to how many bytes ``write`` over this link takes no longer than waking a thread, and never waits for the
        peer. 0 for none: such a link is written by threads only."""
        ...

    def ring(self, token: bytes, seq: int) -> bool:
        """Tell the peer to look; False when that would block (ring again later), ``PeerGone`` when it is gone."""
        ...

    def announce(self, token: bytes) -> None:
        """Tell the peer that a slot comes in moments, where that costs next to nothing; nobody relies on it."""
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
    def caps(self) -> EngineCaps:
        """What it can do."""
        ...

    def receiver(self, region: Region) -> Receiver:
        """An unopened receiver for ``region``, which is opened before it and closed after it."""
        ...

    def sender(self, source: Buffer, runtime_dir: Path) -> Sender:
        """An unopened sender that copies out of ``source`` and keeps its sockets in ``runtime_dir`` (0700)."""
        ...
