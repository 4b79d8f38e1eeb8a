"""Several transfer engines as one: a rank talks ``shm`` to its neighbours and ``tcp`` to everybody else.

All receivers share one region. Each link belongs to one engine, chosen when decode connects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from pdcore.engine.transfer.choose import choose, engine_names, offers_document, read_offers, under_boot
from pdcore.engine.transfer.engine import (
    Announced,
    EngineCaps,
    Linked,
    Lost,
    Receiver,
    Revoked,
    Rung,
    Sender,
    TransferEngine,
)
from pdcore.engine.transfer.memfabric import MemfabricEngine
from pdcore.engine.transfer.memfabric_library import Terms
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.mooncake import MooncakeEngine
from pdcore.engine.transfer.opening import Parts
from pdcore.engine.transfer.plan import Buffer, WriteOps
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_link import boot_id
from pdcore.engine.transfer.tcp import TcpEngine
from pdcore.errors import PeerGone

_GONE: Final = "the decode rank is gone"


class OfferedEngines:
    """See :class:`pdcore.engine.transfer.engine.TransferEngine`. At least one engine, the best first."""

    def __init__(self, engines: Sequence[TransferEngine]) -> None:
        self._engines = tuple(engines)

    @classmethod
    def named(
        cls, setting: str, *, bind_ip: str, secret: bytes, mooncake: tuple[str, str], memfabric: Terms
    ) -> Self:
        """What ``--transfer-engine`` asks for. ``mooncake`` is its protocol and device."""
        protocol, device = mooncake
        build: dict[str, Callable[[], TransferEngine]] = {
            "shm": ShmEngine,
            "tcp": lambda: TcpEngine(bind_ip=bind_ip, secret=secret),
            "mooncake": lambda: MooncakeEngine(
                bind_ip=bind_ip, protocol=protocol, device=device, secret=secret
            ),
            "memfabric": lambda: MemfabricEngine(terms=memfabric, secret=secret),
        }
        return cls([build[name]() for name in engine_names(setting)])

    @property
    def name(self) -> str:
        """All of them."""
        return "+".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """What the instance's compat says."""
        return tuple(engine.name for engine in self._engines)

    @property
    def caps(self) -> EngineCaps:
        """What some link can do, and what is asked of all because one needs it."""
        each = [engine.caps for engine in self._engines]
        return EngineCaps(
            cross_host=any(caps.cross_host for caps in each),
            can_revoke=any(caps.can_revoke for caps in each),
            requires_doorbell=any(caps.requires_doorbell for caps in each),
            alignment=max(caps.alignment for caps in each),
            reaches_devices=all(caps.reaches_devices for caps in each),
        )

    def receiver(self, region: Region) -> OfferedReceiver:
        """Decode's end."""
        return OfferedReceiver({engine.name: engine.receiver(region) for engine in self._engines})

    def sender(self, source: Buffer, runtime_dir: Path) -> OfferedSender:
        """Prefill's end."""
        return OfferedSender({engine.name: engine.sender(source, runtime_dir) for engine in self._engines})


class OfferedReceiver(Parts):
    """See :class:`pdcore.engine.transfer.engine.Receiver`. ``_links`` says whose each token is."""

    def __init__(self, receivers: Mapping[str, Receiver]) -> None:
        self._receivers = dict(receivers)
        self._links: dict[bytes, Receiver] = {}

    def enter(self, stack: ExitStack) -> None:
        """All of them."""
        for receiver in self._receivers.values():
            stack.enter_context(receiver)

    def connect(self, endpoint: Mapping[str, object], token: bytes) -> None:
        """By the best engine that both have. One that cannot get there, say from another container, leaves it to the
        next."""
        offers = read_offers(endpoint)
        names = choose(tuple(self._receivers), tuple(offers), same_machine=under_boot(offers, boot_id()))
        failures: list[str] = []
        for name in names:
            try:
                self._receivers[name].connect(offers[name], token)
            except PeerGone as error:
                failures.append(f"{name}: {error}")
            else:
                self._links[token] = self._receivers[name]
                return
        none = f"it offers {', '.join(offers) or 'no engine'}, we have {', '.join(self._receivers)}"
        raise PeerGone("; ".join(failures) or none, in_doubt=False)

    def disconnect(self, token: bytes) -> None:
        """See the seam."""
        receiver = self._links.pop(token, None)
        if receiver is not None:
            receiver.disconnect(token)

    def allow(self, token: bytes, seq: int) -> None:
        """See the seam."""
        if token in self._links:
            self._links[token].allow(token, seq)

    def revoke(self, token: bytes, seq: int) -> bool:
        """See the seam. A link that is gone proves it."""
        return token not in self._links or self._links[token].revoke(token, seq)

    def drain(self) -> list[Linked | Announced | Rung | Revoked | Lost]:
        """Of all engines; order counts only within a link."""
        news = [item for receiver in self._receivers.values() for item in receiver.drain()]
        for item in news:
            if isinstance(item, Lost):
                self._links.pop(item.token, None)
        return news

    def pollables(self) -> list[int]:
        """Of all engines."""
        return [fd for receiver in self._receivers.values() for fd in receiver.pollables()]


class OfferedSender(Parts):
    """See :class:`pdcore.engine.transfer.engine.Sender`. ``_links`` says whose each token is."""

    def __init__(self, senders: Mapping[str, Sender]) -> None:
        self._senders = dict(senders)
        self._links: dict[bytes, Sender] = {}

    def enter(self, stack: ExitStack) -> None:
        """All of them."""
        for sender in self._senders.values():
            stack.enter_context(sender)

    def endpoint(self) -> dict[str, object]:
        """One document per engine."""
        return offers_document({name: sender.endpoint() for name, sender in self._senders.items()})

    def drain(self) -> list[Linked | Lost]:
        """Of all engines. A token that another engine's link has already is not let in twice."""
        news: list[Linked | Lost] = []
        for sender in self._senders.values():
            for item in sender.drain():
                owner = self._links.setdefault(item.token, sender)
                if owner is sender:
                    news.append(item)
                elif isinstance(item, Linked):
                    sender.release(item.token)
        return news

    def pollables(self) -> list[int]:
        """Of all engines."""
        return [fd for sender in self._senders.values() for fd in sender.pollables()]

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """See the seam."""
        self._sender(token).write(token, ops, seq)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """See the seam."""
        self._sender(token).write_bytes(token, offset, data, seq)

    def inline_bytes(self, token: bytes) -> int:
        """See the seam."""
        sender = self._links.get(token)
        return sender.inline_bytes(token) if sender is not None else 0

    def ring(self, token: bytes, seq: int) -> bool:
        """See the seam."""
        return self._sender(token).ring(token, seq)

    def announce(self, token: bytes) -> None:
        """Over the link's own engine."""
        if token in self._links:
            self._links[token].announce(token)

    def release(self, token: bytes) -> None:
        """See the seam."""
        sender = self._links.pop(token, None)
        if sender is not None:
            sender.release(token)

    def _sender(self, token: bytes) -> Sender:
        sender = self._links.get(token)
        if sender is None:
            raise PeerGone(_GONE, in_doubt=False)
        return sender
