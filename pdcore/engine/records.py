"""What an instance tells the keyspace about itself. Pure: from what its ranks reported to the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdcore.engine.messages import Ready
from pdcore.engine.placement import Placement
from pdcore.errors import ConfigError
from pdcore.topology.codec import compat_from
from pdcore.topology.compat import own_problems
from pdcore.topology.keys import RankPosition
from pdcore.topology.orders import DRAINED
from pdcore.topology.records import InstanceRecord, Json, RankRecord, Role, State

PROTOCOL: Final = "bootstrap"
"""How this engine's two legs find each other: by room and bootstrap address, joined over ZMQ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a leader knows of itself before any rank has started. ``bootstrap_port`` only for prefill.

    ``extra`` are fields of the record that not every instance has.
    """

    role: Role
    instance_id: str
    incarnation: str
    models: tuple[str, ...]
    host: str
    url: str
    bootstrap_port: int | None
    block_size: int
    machine: str
    boot_id: str
    pid: int
    extra: Mapping[str, Json]
    group: str = ""
    generation: int = 0


def instance_record(identity: Identity, ready: Mapping[RankPosition, Ready], state: State) -> InstanceRecord:
    """The instance's record. ConfigError, field by field, when its ranks do not serve the same, or cannot in such number."""
    wrong = disagreements(identity, ready)
    if wrong:
        raise ConfigError(*wrong)
    first = ready[min(ready)]
    record = InstanceRecord(
        incarnation=identity.incarnation,
        role=identity.role,
        group=identity.group,
        generation=identity.generation,
        models=identity.models,
        url=identity.url,
        bootstrap_host=None if identity.bootstrap_port is None else identity.host,
        bootstrap_port=identity.bootstrap_port,
        protocol=PROTOCOL,
        dp_size=1 + max(rank.dp for rank in ready),
        cp_size=1 + max(rank.cp for rank in ready),
        tp_size=1 + max(rank.tp for rank in ready),
        pp_size=1,
        compat=compat_from(first.compat),
        kv_tokens=sum(said.kv_tokens for rank, said in ready.items() if rank.cp == rank.tp == 0),
        block_size=identity.block_size,
        machine=identity.machine,
        boot_id=identity.boot_id,
        pid=identity.pid,
        state=state,
        extra=identity.extra,
    )
    wrong = own_problems(record)
    if wrong:
        raise ConfigError(*wrong)
    return record


def disagreements(identity: Identity, ready: Mapping[RankPosition, Ready]) -> tuple[str, ...]:
    """Where a rank does not serve what its instance does: the first rank's word on what a pair must share, and the
    block size that the instance was started with. One sentence per rank and field."""
    leading = min(ready)
    block_sizes = ready[leading].compat.get("block_sizes")
    wrong = []
    if not isinstance(block_sizes, list | tuple) or identity.block_size not in block_sizes:
        said = f"rank {leading}: block_sizes is {block_sizes!r}"
        wrong.append(f"{said}, the instance was started with {identity.block_size}")
    for rank in sorted(ready):
        mine, theirs = ready[rank].compat, ready[leading].compat
        for field in sorted(mine.keys() | theirs.keys()):
            if mine.get(field) != theirs.get(field):
                values = f"{mine.get(field)!r}, rank {leading} has {theirs.get(field)!r}"
                wrong.append(f"rank {rank}: {field} is {values}")
    return tuple(wrong)


def standing(record: InstanceRecord, state: State, *, drained: bool) -> InstanceRecord:
    """``record`` in ``state``; ``drained`` marks one that was ordered to drain and has finished what it held."""
    others = {name: value for name, value in record.extra.items() if name != DRAINED}
    return record._replace(state=state, extra={**others, DRAINED: True} if drained else others)


def by_node(
    placement: Placement, ready: Mapping[RankPosition, Ready]
) -> dict[int, dict[RankPosition, Ready]]:
    """What the ranks of each machine said; every machine is there."""
    said: dict[int, dict[RankPosition, Ready]] = {node: {} for node in range(placement.nnodes)}
    for rank, one in ready.items():
        said[placement.node_of(rank)][rank] = one
    return said


def rank_records(
    incarnation: str, machine: str, ready: Mapping[RankPosition, Ready]
) -> dict[RankPosition, RankRecord]:
    """One record per rank of that machine."""
    return {
        rank: RankRecord(
            incarnation=incarnation,
            rank_ip=said.rank_ip,
            rank_port=said.rank_port,
            transfer=said.transfer,  # type: ignore[arg-type]  # from msgpack: JSON's types
            device=said.device,
            machine=machine,
        )
        for rank, said in ready.items()
    }
