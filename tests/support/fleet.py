"""Records of an imaginary fleet: valid as they come, each test overrides what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pdcore.topology import codec, keys
from pdcore.topology.instance import expected_positions
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.records import (
    Compat,
    InstanceRecord,
    OrderKind,
    OrderRecord,
    RankRecord,
    Record,
    Role,
)
from pdcore.topology.topology import Stored, Topology, build

COMPAT = Compat(
    model_fingerprint="0123456789abcdef",
    context_length=8192,
    kv_dtype="float32",
    block_sizes=(16,),
    kv_layout="block_major",
    attention="gqa",
    layers=30,
    kv_heads=3,
    head_dim=64,
    transfer_engines=("shm", "tcp"),
    wire=1,
    layout=1,
)


def compat(**changes: Any) -> Compat:
    """A compat block with ``changes``."""
    return replace(COMPAT, **changes)


def instance_record(role: Role = "prefill", **changes: Any) -> InstanceRecord:
    """A serving instance of one rank; only a prefill has a bootstrap address."""
    record = InstanceRecord(
        incarnation="inc-1",
        role=role,
        group="",
        generation=0,
        models=("tiny",),
        url="http://127.0.0.1:8001",
        bootstrap_host="127.0.0.1" if role == "prefill" else None,
        bootstrap_port=18800 if role == "prefill" else None,
        protocol="pdcore",
        dp_size=1,
        cp_size=1,
        tp_size=1,
        pp_size=1,
        compat=COMPAT,
        kv_tokens=32768,
        block_size=16,
        machine="host-a",
        boot_id="boot-a",
        pid=4242,
        state="serving",
    )
    return record._replace(**changes)


def rank_record(**changes: Any) -> RankRecord:
    """A rank of :func:`instance_record`."""
    record = RankRecord(
        incarnation="inc-1",
        rank_ip="127.0.0.1",
        rank_port=40001,
        transfer={"engines": {"shm": {"engine": "shm", "socket": "/run/pdcore/kv.sock"}}},
        device="cpu",
        machine="host-a",
    )
    return record._replace(**changes)


def order_record(
    kind: OrderKind = "drain", incarnation: str | None = "inc-1", *, sticky: bool = False
) -> OrderRecord:
    """An operator's order for :func:`instance_record`."""
    return OrderRecord(kind=kind, incarnation=incarnation, sticky=sticky, by="test")


def complete(instance_id: str, record: InstanceRecord, **rank_changes: Any) -> dict[str, Record]:
    """The keys of an instance with every rank it needs."""
    rank = rank_record(incarnation=record.incarnation, **rank_changes)
    positions = (RankPosition(*at) for at in expected_positions(record))
    ranks: dict[str, Record] = {keys.rank(RankId(instance_id, at)): rank for at in positions}
    return {keys.instance(instance_id): record, **ranks}


def stored(records: dict[str, Record], revision: int = 1) -> dict[str, Stored]:
    """``records`` as a store would list them, all written at ``revision``."""
    return {key: Stored(codec.encode(record), revision) for key, record in records.items()}


def topology_of(*parts: dict[str, Record], revision: int = 1) -> Topology:
    """The topology of all ``parts``."""
    return build(stored({key: record for part in parts for key, record in part.items()}, revision), revision)
