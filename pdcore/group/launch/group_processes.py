"""The command line of each member of a group on this machine. Pure.

A member is started from its frozen generation, and from what only this machine knows: the store, the router's port, how
many cores there are. What the supervisor decides comes after what the spec says, and so wins.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from pdcore.config import StoreAccess
from pdcore.group.control.generation import FrozenRole, Generation
from pdcore.group.control.members import Member
from pdcore.group.launch.members import HOST
from pdcore.group.launch.members import Member as Process
from pdcore.telemetry import LogFormat

NATIVE = "pdcore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What members on this machine have in common. ``port`` is the first router's; 0 lets each pick one."""

    cluster: str
    access: StoreAccess
    port: int
    torch_threads: int
    drain_timeout_s: float
    log_format: LogFormat
    log_level: str


def process_of(group: str, member: Member, generation: Generation, machine: Machine) -> Process:
    """How ``member`` is started."""
    role, name = generation.roles[member.role], member.name_in(group)
    if role.run_command is not None:
        argv = tuple(shlex.split(role.run_command)) + role.parameters
    elif member.role == "router":
        argv = _router(name, member, role, machine)
    else:
        argv = _engine(group, name, member, generation, machine)
    return Process(name=name, argv=argv, secrets={**role.env, **_secrets(machine)})


def _engine(
    group: str, name: str, member: Member, generation: Generation, machine: Machine
) -> tuple[str, ...]:
    flags = {
        **_shared(machine),
        "role": member.role,
        "instance-id": name,
        "group": group,
        "generation": str(member.generation),
        "model": generation.model,
        "model-name": generation.model_name,
        "port": "0",
        "bootstrap-port": "0",
    }
    first = {"torch-threads": str(machine.torch_threads)}
    parameters = generation.roles[member.role].parameters
    return (sys.executable, "-m", "pdcore.engine", *_words(first), *parameters, *_words(flags))


def _router(name: str, member: Member, role: FrozenRole, machine: Machine) -> tuple[str, ...]:
    port = machine.port + member.number - 1 if machine.port else 0
    flags = {**_shared(machine), "port": str(port), "router-id": name}
    return (sys.executable, "-m", "pdcore.router", *role.parameters, *_words(flags))


def _shared(machine: Machine) -> dict[str, str]:
    access = machine.access
    login = {"user": access.user, "ca": access.ca, "cert": access.cert, "key": access.key}
    return {
        "store": access.url,
        **{f"store-{name}": value for name, value in login.items() if value is not None},
        "cluster": machine.cluster,
        "host": HOST,
        "drain-timeout-s": f"{machine.drain_timeout_s:g}",
        "log-format": machine.log_format,
        "log-level": machine.log_level,
    }


def _secrets(machine: Machine) -> dict[str, str]:
    password = machine.access.password
    return {} if password is None else {"PDCORE_STORE_PASSWORD": password}


def _words(flags: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for flag, value in flags.items() for word in (f"--{flag}", value))
