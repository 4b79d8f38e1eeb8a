"""Answers of the bootstrap protocol, and an instance of the keyspace as the protocol sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcore.registry.facade.bodies import Shared
from pdcore.topology.instance import Instance
from pdcore.topology.records import InstanceRecord

MAX_PREFILL_TOKENS: Final = "max_prefill_tokens"
"""In an instance record's extra fields: most prompt tokens it computes in one step."""

NOT_READY: Final = "bootstrap ranks not ready"


def shared_of(record: InstanceRecord) -> Shared:
    """What every rank of this instance would say."""
    tokens = record.extra.get(MAX_PREFILL_TOKENS)
    return Shared(
        tp_size=record.tp_size,
        cp_size=record.cp_size,
        dp_size=record.dp_size,
        block_sizes=record.compat.block_sizes,
        kv_cache_dtype=record.compat.kv_dtype,
        max_prefill_tokens=tokens if type(tokens) is int else None,
    )


def has_route(instance: Instance) -> bool:
    """Whether every rank is there. One that drains is still asked for the requests it has."""
    return instance.record.state != "starting" and len(instance.ranks) == instance.record.world_size


def route(instance: Instance) -> Mapping[str, object]:
    """The answer to ``GET /bootstrap/route``."""
    record, shared = instance.record, shared_of(instance.record)
    return {
        "attn_tp_size": shared.tp_size,
        "attn_cp_size": shared.cp_size,
        "dp_size": shared.dp_size,
        "pp_size": record.pp_size,
        "block_size": record.block_size,
        "block_sizes": list(shared.block_sizes),
        "kv_cache_dtype": shared.kv_cache_dtype,
        MAX_PREFILL_TOKENS: shared.max_prefill_tokens,
        "ranks": {
            f"{position.dp},{position.cp},{position.tp}": {
                "rank_ip": rank.rank_ip,
                "rank_port": rank.rank_port,
            }
            for position, rank in instance.ranks.items()
        },
    }
