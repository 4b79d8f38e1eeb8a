"""The keys of an engine at a fixed address, as if it had registered itself. Pure.

What nobody told is not made up but left out of the comparison: every engine of such a router gets the same ``compat``, so
that any prefill pairs with any decode that serves its model. Whoever starts the router vouches for that.
"""

from __future__ import annotations

from typing import Final

from pdcore.config.targets import Target
from pdcore.router.fixed.standing import Standing
from pdcore.topology import keys
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.records import DP_RANK_CHOICE, Compat, InstanceRecord, RankRecord, Record

UNKNOWN: Final = "unknown"
BOOTSTRAP_PORT: Final = 18800
_RANK: Final = RankPosition(0, 0, 0)

COMPAT: Final = Compat(
    model_fingerprint=UNKNOWN,
    context_length=1,
    kv_dtype=UNKNOWN,
    block_sizes=(1,),
    kv_layout=UNKNOWN,
    attention=UNKNOWN,
    layers=1,
    kv_heads=1,
    head_dim=1,
    transfer_engines=(UNKNOWN,),
    wire=0,
    layout=0,
)


def names(instance_id: str) -> tuple[str, str]:
    """The keys that such an instance consists of, relative to the view."""
    return keys.instance(instance_id), keys.rank(RankId(instance_id, _RANK))


def bootstrap_port(target: Target, protocol: str) -> int | None:
    """The one that was named; else ours where the protocol is ours, and what the protocol takes by itself elsewhere."""
    if target.bootstrap_port is None and target.role == "prefill" and protocol == "bootstrap":
        return BOOTSTRAP_PORT
    return target.bootstrap_port


def records(target: Target, standing: Standing, protocol: str) -> dict[str, Record]:
    """Them and their records: one instance of one rank. Its DP ranks are its own business."""
    of_instance, of_rank = names(target.instance_id)
    port = bootstrap_port(target, protocol)
    instance = InstanceRecord(
        incarnation=standing.incarnation,
        role=target.role,
        group="",
        generation=0,
        models=standing.models,
        url=target.url,
        bootstrap_host=None if port is None else target.host,
        bootstrap_port=port,
        protocol="unified" if target.role == "unified" else protocol,
        dp_size=1,
        cp_size=1,
        tp_size=1,
        pp_size=1,
        compat=COMPAT,
        kv_tokens=0,
        block_size=1,
        machine=target.host,
        boot_id="",
        pid=0,
        state="serving" if standing.is_up else "starting",
        extra={DP_RANK_CHOICE: "engine"},
    )
    rank = RankRecord(
        incarnation=standing.incarnation,
        rank_ip=target.host,
        rank_port=None,
        transfer={},
        device=UNKNOWN,
        machine=target.host,
    )
    return {of_instance: instance, of_rank: rank}
