"""The fleet as a person or a program reads it: one row per instance, a table, a JSON document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from pdcore.topology.instance import Instance
from pdcore.topology.pairing import PARTNERS, Alone, alone
from pdcore.topology.records import Role
from pdcore.topology.topology import Topology

SHORT_INCARNATION: Final = 8
_COLUMNS: Final = ("instance", "role", "state", "ready", "models", "url", "incarnation", "ranks", "kv tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """One instance. ``kv_tokens`` is the capacity of its KV cache."""

    instance_id: str
    role: str
    state: str
    ready: bool
    why_not_ready: tuple[str, ...]
    models: tuple[str, ...]
    url: str
    bootstrap: str | None
    incarnation: str
    group: str
    generation: int
    seat: int | None
    ranks: int
    ranks_expected: int
    kv_tokens: int
    block_size: int

    @classmethod
    def of(cls, instance: Instance) -> InstanceRow:
        """What ``instance`` looks like from outside."""
        record = instance.record
        return cls(
            instance_id=instance.instance_id,
            role=record.role,
            state="draining" if instance.draining else record.state,
            ready=instance.ready,
            why_not_ready=instance.why_not_ready,
            models=record.models,
            url=record.url,
            bootstrap=None
            if record.bootstrap_port is None
            else f"{record.bootstrap_host}:{record.bootstrap_port}",
            incarnation=instance.incarnation,
            group=record.group,
            generation=record.generation,
            seat=record.seat,
            ranks=len(instance.ranks),
            ranks_expected=record.world_size,
            kv_tokens=record.kv_tokens,
            block_size=record.block_size,
        )

    def cells(self) -> tuple[str, ...]:
        """The row as the table shows it."""
        return (
            self.instance_id,
            self.role,
            self.state,
            "yes" if self.ready else f"no: {'; '.join(self.why_not_ready)}",
            ", ".join(self.models),
            self.url,
            self.incarnation[:SHORT_INCARNATION],
            f"{self.ranks}/{self.ranks_expected}",
            f"{self.kv_tokens}",
        )


def instance_rows(topology: Topology) -> tuple[InstanceRow, ...]:
    """Every instance, prefill before decode before unified, then by name."""
    roles = ("prefill", "decode", "unified")
    instances = sorted(topology.instances.values(), key=lambda i: (roles.index(i.role), i.instance_id))
    return tuple(InstanceRow.of(instance) for instance in instances)


def document(topology: Topology, *, store: str, cluster: str) -> dict[str, object]:
    """The fleet for programs; names as in the keyspace."""
    routers = sorted(topology.routers.items())
    return {
        "store": store,
        "cluster": cluster,
        "store_id": topology.store_id,
        "revision": topology.revision,
        "instances": [asdict(row) for row in instance_rows(topology)],
        "routers": [
            {"router_id": name, "url": record.url, "version": record.version} for name, record in routers
        ],
        "alone": {name: why._asdict() for name, why in alone(topology).items()},
        "departures": _reasons(topology),
        "rejected": {key: rejected.reason for key, rejected in sorted(topology.rejected.items())},
    }


def _reasons(topology: Topology) -> Mapping[str, str]:
    return {name: record.reason for name, record in sorted(topology.departures.items())}


def table(topology: Topology, *, cluster: str) -> Table:
    """The fleet for people."""
    made = Table(
        title=f"cluster {cluster} at revision {topology.revision}",
        caption="\n".join(_notes(topology)) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in _COLUMNS:
        numeric = column in {"ranks", "kv tokens"}
        made.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=column == "instance"
        )
    for row in instance_rows(topology):
        made.add_row(*map(escape, row.cells()))
    for name, record in sorted(topology.routers.items()):
        made.add_row(*map(escape, (name, "router", "", "", "", record.url, "", "", "")))
    return made


def _alone(topology: Topology) -> Iterator[str]:
    """Who has nobody to serve with; those with the same reason together."""
    together: dict[tuple[Role, Alone], list[str]] = {}
    for name, why in alone(topology).items():
        together.setdefault((PARTNERS[topology.instances[name].role], why), []).append(name)
    for (partner, why), names in together.items():
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield why.sentence(f"{names[0]}{more}", partner)


def _notes(topology: Topology) -> Iterator[str]:
    if not topology.instances and not topology.routers:
        yield "Nothing is registered here."
    yield from map(escape, _alone(topology))
    for name, reason in _reasons(topology).items():
        if name not in topology.instances:
            yield escape(f"{name} is gone: {reason}")
    for _, rejected in sorted(topology.rejected.items()):
        yield escape(str(rejected))
