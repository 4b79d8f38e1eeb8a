"""Which processes make a cluster on one machine, and the command line of each. Pure.

Instances get stable names (``prefill-1``) and free ports: whoever needs an address reads it in the keyspace. Settings
that are not named here reach the members as everywhere else, through ``PDCORE_…`` and ``pdcore.toml``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pdcore.config import StoreAccess
from pdcore.telemetry import LogFormat
from pdcore.topology.records import Role

ROUTER_NAME: Final = "router-1"
HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One supervised process. ``name`` is its prefix in the log; ``secrets`` are variables of its own environment.

    ``port``: where it listens once it serves, of one that does not tell by itself. ``told_at``: where a router without a
    store is told of members.
    """

    name: str
    argv: tuple[str, ...]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    port: int | None = None
    told_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What `pdcore up` was asked for. ``port`` is the router's; 0 lets it pick. ``redis`` is for journal and rooms."""

    cluster: str
    model: Path
    model_name: str | None
    replicas: tuple[tuple[Role, int], ...]
    port: int
    torch_threads: int
    drain_timeout_s: float
    log_format: LogFormat
    log_level: str
    redis: StoreAccess | None = None

    @property
    def instance_ids(self) -> tuple[str, ...]:
        return tuple(f"{role}-{number + 1}" for role, count in self.replicas for number in range(count))


def engines(plan: ClusterPlan, access: StoreAccess) -> tuple[Member, ...]:
    """Every engine instance of ``plan``."""
    return tuple(
        _engine(plan, access, role, f"{role}-{number + 1}")
        for role, count in plan.replicas
        for number in range(count)
    )


def router(plan: ClusterPlan, access: StoreAccess) -> Member:
    """The one router of ``plan``."""
    flags = {"port": str(plan.port), "router-id": ROUTER_NAME}
    argv = _python("router", {**_shared(plan, access), **flags})
    return Member(name=ROUTER_NAME, argv=argv, secrets=_secrets(plan, access))


def _engine(plan: ClusterPlan, access: StoreAccess, role: Role, instance_id: str) -> Member:
    flags = {
        "role": role,
        "instance-id": instance_id,
        "model": str(plan.model),
        "port": "0",
        "bootstrap-port": "0",
        "torch-threads": str(plan.torch_threads),
    }
    if plan.model_name is not None:
        flags["model-name"] = plan.model_name
    argv = _python("engine", {**_shared(plan, access), **flags})
    return Member(name=instance_id, argv=argv, secrets=_secrets(plan, access))


def _shared(plan: ClusterPlan, access: StoreAccess) -> dict[str, str]:
    return {
        **_reaching("store", access),
        **({} if plan.redis is None else _reaching("redis", plan.redis)),
        "cluster": plan.cluster,
        "host": HOST,
        "drain-timeout-s": f"{plan.drain_timeout_s:g}",
        "log-format": plan.log_format,
        "log-level": plan.log_level,
    }


def _reaching(setting: str, access: StoreAccess) -> dict[str, str]:
    login = {"user": access.user, "ca": access.ca, "cert": access.cert, "key": access.key}
    given = {f"{setting}-{name}": value for name, value in login.items() if value is not None}
    return {setting: access.url, **given}


def _secrets(plan: ClusterPlan, access: StoreAccess) -> dict[str, str]:
    """What may be known to us from a file that the members do not read, and must not be on a command line."""
    passwords = {
        "PDCORE_STORE_PASSWORD": access.password,
        "PDCORE_REDIS_PASSWORD": None if plan.redis is None else plan.redis.password,
    }
    return {variable: password for variable, password in passwords.items() if password is not None}


def _python(package: Literal["engine", "router"], flags: dict[str, str]) -> tuple[str, ...]:
    named = (part for flag, value in flags.items() for part in (f"--{flag}", value))
    return (sys.executable, "-m", f"pdcore.{package}", *named)
