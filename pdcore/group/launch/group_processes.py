"""The process of each member of a group on this machine: rendered from its frozen generation and its place here.

Ports of members that cannot pick their own are held here for as long as they are members. What only this machine knows
(how the store is entered, how many cores there are) is added behind, unless the spec says it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pdcore.config import StoreAccess
from pdcore.errors import PdcoreError
from pdcore.group.control.generation import Generation
from pdcore.group.control.keeping import generation_of_member
from pdcore.group.control.members import ENGINE_ROLES, Member
from pdcore.group.control.seen import Seen
from pdcore.group.flags import Flags
from pdcore.group.launch.members import HOST
from pdcore.group.launch.members import Member as Process
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.mode import Mode
from pdcore.group.ports.holding import HeldPorts
from pdcore.group.render.engine import render_engine
from pdcore.group.render.facts import GroupFacts, Peer, Place, PortBand
from pdcore.group.render.frozen_roles import frozen_group
from pdcore.group.render.needs import HTTP, needs_of
from pdcore.group.render.rendered import Rendered
from pdcore.group.render.router import render_router
from pdcore.telemetry import LogFormat

NATIVE: Final = "pdcore"
ADMIN: Final = "admin"
"""The band of a router's port for operators."""
_OWN: Final = ("pdcore.engine", "pdcore.router")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What members on this machine have in common. ``port`` is the first router's; 0 takes one of the range."""

    cluster: str
    access: StoreAccess
    port: int
    torch_threads: int
    drain_timeout_s: float
    log_format: LogFormat
    log_level: str
    accelerators: int | None = None
    net_device: str | None = None


@dataclass(slots=True)
class Processes:
    """Says how members are started. Mutable: the ports that are held for them in ``ports``."""

    here: Here
    ports: HeldPorts
    _known: dict[int, GroupFacts] = field(default_factory=dict)

    def of(self, seen: Seen, member: Member) -> Process:
        """The process of ``member``. PdcoreError with every reason when it cannot be started here."""
        generation = generation_of_member(seen, member)
        if generation is None:
            raise PdcoreError(f"{member.label} has no generation to be started from")
        rendered, port = self._rendered(seen, member, generation)
        if rendered.problems:
            raise PdcoreError("; ".join(map(str, rendered.problems)))
        argv = rendered.command
        return Process(
            name=member.name_in(seen.group),
            argv=(*argv, *self._local(argv)),
            secrets={**rendered.environment, **self._secrets()},
            port=None if generation.mode == NATIVE else port,
            told_at=self._told_at(seen.group, member, generation),
        )

    def give_back(self, group: str, member: Member) -> None:
        """Nobody needs the ports of ``member`` any more."""
        self.ports.give_back(member.name_in(group))

    def _rendered(self, seen: Seen, member: Member, generation: Generation) -> tuple[Rendered, int | None]:
        facts, mode = self._facts(seen.group, generation), catalogue().mode(generation.mode)
        place = self._place(seen.group, member, facts, mode)
        role = facts.roles[member.role]
        if member.role != "router":
            return render_engine(catalogue(), mode, facts, role, place), place.port
        peers = None if mode.name == NATIVE else _peers(seen)
        return render_router(catalogue(), mode, facts, role, place, peers), place.port

    def _facts(self, group: str, generation: Generation) -> GroupFacts:
        known = self._known.get(generation.number)
        if known is None:
            known = self._known[generation.number] = frozen_group(
                group,
                generation.document,
                python=sys.executable,
                store=self.here.access.url,
                cluster=self.here.cluster,
            )
        return known

    def _place(self, group: str, member: Member, facts: GroupFacts, mode: Mode) -> Place:
        name = member.name_in(group)
        needs = needs_of(catalogue(), mode, facts.roles[member.role], self.here.accelerators)
        held = self.ports.take(name, needs)
        port = held[HTTP].base if HTTP in held else None
        if member.role == "router" and self.here.port:
            port = self.here.port + member.number - 1
        return Place(
            instance_id=name,
            worker_ip=HOST,
            net_device=self.here.net_device,
            port=port,
            bands=_bands(held),
            accelerators=self.here.accelerators,
        )

    def _told_at(self, group: str, member: Member, generation: Generation) -> str | None:
        """Where a router of ours listens for members that the keyspace does not tell of."""
        role = generation.roles[member.role]
        if member.role != "router" or generation.mode == NATIVE or role.run_command is not None:
            return None
        admin = self._place(
            group, member, self._facts(group, generation), catalogue().mode(generation.mode)
        ).bands
        return f"http://{HOST}:{admin[ADMIN].base}" if ADMIN in admin else None

    def _local(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Flags of pdcore's own programs that nobody wrote."""
        program = next((one for one in _OWN if one in argv[:3]), None)
        if program is None:
            return ()
        given = {flag.name for flag in Flags.of(argv).flags}
        known = {
            "drain-timeout-s": f"{self.here.drain_timeout_s:g}",
            "log-format": self.here.log_format,
            "log-level": self.here.log_level,
        }
        if "store" in given:
            known |= self._login()
        if program == "pdcore.engine":
            known["torch-threads"] = str(self.here.torch_threads)
        return tuple(
            word for name, value in known.items() if name not in given for word in (f"--{name}", value)
        )

    def _login(self) -> dict[str, str]:
        access = self.here.access
        login = {"user": access.user, "ca": access.ca, "cert": access.cert, "key": access.key}
        return {f"store-{name}": value for name, value in login.items() if value is not None}

    def _secrets(self) -> dict[str, str]:
        password = self.here.access.password
        return {} if password is None else {"PDCORE_STORE_PASSWORD": password}


def urls_of(seen: Seen) -> Iterator[tuple[str, str]]:
    """(role, URL) of the engines of the generation that takes the traffic, those that answer and do not register."""
    for role in ENGINE_ROLES:
        for member in seen.plan.of(role):
            slot = seen.slots.get(member)
            if slot is not None and slot.word is not None and slot.word.url:
                yield role, slot.word.url


def _peers(seen: Seen) -> list[Peer]:
    split = ((role, urlsplit(url)) for role, url in urls_of(seen))
    return [
        Peer(role=role, ip=where.hostname, port=where.port)
        for role, where in split
        if where.hostname is not None and where.port is not None
    ]


def _bands(held: Mapping[str, PortBand]) -> dict[str, PortBand]:
    return {name: band for name, band in held.items() if name != HTTP}
