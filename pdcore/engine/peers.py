"""Where a decode leader finds the prefill rank to ask: in the followed keyspace, and nowhere else.

A peer whose keys vanished unexplained is still found, as long as it answers.

What a request names is only looked up, never connected to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pdcore.engine.legs import Leg, choose_dp_rank, stale_peer
from pdcore.engine.room_choice import RoomLookup
from pdcore.engine.transfer.orders import PrefillGroup, PrefillPeer
from pdcore.errors import ApiError
from pdcore.topology.compat import check_pair
from pdcore.topology.instance import Instance
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import InstanceRecord
from pdcore.topology.topology import Topology

UNKNOWN_PEER_WAIT_S: Final = 0.5


class View(Protocol):
    """The followed keyspace with its suspects in it, as far as it is needed here."""

    @property
    def topology(self) -> Topology: ...

    async def wait_until(self, predicate: Callable[[Topology], bool], timeout_s: float) -> Topology: ...


@dataclass(frozen=True, slots=True)
class Peers:
    """Prefill peers of one decode instance; ``own`` is its record once it has one."""

    view: View
    own: Callable[[], InstanceRecord | None]
    rooms: RoomLookup

    async def prefill(self, leg: Leg, expected: str | None) -> PrefillGroup:
        """The prefill DP group of ``leg``; waits half a second for an incarnation (or address) not known yet.

        ApiError: 421 when the named incarnation is not the one here, 400 when the address names nobody and nobody
        was expected, 503 when the two instances do not fit together.
        """
        topology = self.view.topology
        if not knows(topology, leg, expected) and not has_departed(topology, expected):
            topology = await self._wait_for(leg, expected)
        chooser = chooser_of(topology, leg, expected)
        if chooser is not None:
            leg = replace(leg, dp_rank=await self.rooms.dp_rank(chooser, leg.room))
            topology = self.view.topology
        peer = locate(topology, leg, expected)
        own = self.own()
        reasons = () if own is None else check_pair(_record(topology, leg), own)
        if reasons:
            raise ApiError("backend_unavailable", f"{peer.instance_id} cannot feed this one: {reasons[0]}")
        return peer

    async def _wait_for(self, leg: Leg, expected: str | None) -> Topology:
        try:
            return await self.view.wait_until(lambda seen: knows(seen, leg, expected), UNKNOWN_PEER_WAIT_S)
        except TimeoutError:
            return self.view.topology


def knows(topology: Topology, leg: Leg, expected: str | None) -> bool:
    """Whether ``topology`` has all ranks for this leg, of the expected incarnation if one is."""
    instance = topology.by_bootstrap(leg.host, leg.port)
    if instance is None or expected not in (None, instance.record.incarnation):
        return False
    return len(instance.ranks) == instance.record.world_size


def chooser_of(topology: Topology, leg: Leg, expected: str | None) -> Instance | None:
    """The instance that has chosen this leg's DP rank by itself, None when somebody else has."""
    instance = topology.by_bootstrap(leg.host, leg.port)
    if leg.dp_rank is not None or instance is None or not instance.record.chooses_dp_rank:
        return None
    return instance if expected in (None, instance.incarnation) else None


def has_departed(topology: Topology, expected: str | None) -> bool:
    """Whether the keyspace says that this incarnation is gone: waiting for it would be in vain."""
    return any(departed.incarnation == expected for departed in topology.departures.values())


def locate(topology: Topology, leg: Leg, expected: str | None) -> PrefillGroup:
    """The DP group that ``leg`` names, complete, or the ApiError that says why there is none."""
    address = f"{leg.host}:{leg.port}"
    instance = topology.by_bootstrap(leg.host, leg.port)
    if instance is None and expected is None:
        message = f"bootstrap_host and bootstrap_port name no registered prefill instance ({address})"
        raise ApiError("invalid_request", message, param="bootstrap_host")
    if instance is None or expected not in (None, instance.record.incarnation):
        raise stale_peer(address, expected)
    record = instance.record
    dp = choose_dp_rank(leg, record.dp_size)
    return PrefillGroup(
        instance_id=instance.instance_id,
        incarnation=record.incarnation,
        dp=dp,
        dp_size=record.dp_size,
        cp_size=record.cp_size,
        tp_size=record.tp_size,
        ranks=tuple(
            _peer(instance, RankPosition(dp, cp, tp))
            for cp in range(record.cp_size)
            for tp in range(record.tp_size)
        ),
    )


def _peer(instance: Instance, position: RankPosition) -> PrefillPeer:
    rank = instance.ranks.get(position)
    if rank is None or rank.rank_port is None:
        message = f"prefill instance {instance.instance_id} has no rank {position} that takes handshakes now"
        raise ApiError("backend_unavailable", message)
    return PrefillPeer(
        instance_id=instance.instance_id,
        incarnation=instance.record.incarnation,
        dp=position.dp,
        cp=position.cp,
        tp=position.tp,
        rank_ip=rank.rank_ip,
        rank_port=rank.rank_port,
        transfer=dict(rank.transfer),
    )


def _record(topology: Topology, leg: Leg) -> InstanceRecord:
    instance = topology.by_bootstrap(leg.host, leg.port)
    assert instance is not None
    return instance.record
