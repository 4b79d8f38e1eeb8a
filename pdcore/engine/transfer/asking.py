"""What a decode rank asks, and whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.entries import Entry
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes, RankMapping, spread_of
from pdcore.engine.transfer.orders import Open, PrefillGroup, PrefillPeer
from pdcore.engine.transfer.plan import RegionShape, lists_problem

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Asker:
    """This decode rank: who it is, where it stands, and its memory. ``layout`` is the whole model's."""

    identity: wire.RankIdentity
    sizes: GroupSizes
    layout: KvLayout
    shape: RegionShape

    def sources_of(self, prefill: PrefillGroup) -> list[PrefillPeer]:
        """The ranks of ``prefill`` that write into this one; ``ValueError`` with every reason when it cannot be."""
        sizes = GroupSizes(prefill.cp_size, prefill.tp_size)
        spread = spread_of(self.identity.instance_id, self.identity.dp)
        mapping = RankMapping(sizes, self.sizes, self.layout, spread)
        ranks = {GroupRank(peer.cp, peer.tp): peer for peer in prefill.ranks}
        wanted = mapping.sources_of(GroupRank(self.identity.cp, self.identity.tp))
        missing = [str(rank) for rank in wanted if rank not in ranks]
        if missing:
            raise ValueError(f"prefill {prefill.instance_id} has no rank {', '.join(missing)} in its record")
        return [ranks[rank] for rank in wanted]

    def blocks_of(self, order: Open) -> BlockLists:
        """The blocks that the prompt needs; ``ValueError`` for an order that no leader may give."""
        problem = lists_problem(order.blocks, self.shape, order.prompt_len)
        if problem is not None or not 1 <= order.room <= wire.MAX_ROOM:
            raise ValueError(problem or f"room {order.room} is outside 1..2^63-1")
        return tuple(
            blocks[: group.blocks_for(order.prompt_len)]
            for blocks, group in zip(order.blocks, self.shape.layout.groups, strict=True)
        )

    def hello(self, token: bytes, expected_incarnation: str) -> wire.Hello:
        """To a prefill rank that was linked as ``token``."""
        return wire.Hello(
            token=token,
            version=wire.WIRE_VERSION,
            decode=self.identity,
            cp_size=self.sizes.cp,
            tp_size=self.sizes.tp,
            expected_incarnation=expected_incarnation,
            layout=self.layout,
            blocks=self.shape.blocks,
            slots=self.shape.slots,
            probes=self.shape.probes,
        )


def handshake(entry: Entry, token: bytes, now: float) -> wire.Handshake:
    """Ask for the entry's KV."""
    return wire.Handshake(
        token=token,
        seq=entry.seq,
        room=entry.room,
        slot=entry.slot,
        groups=entry.blocks,
        prompt_len=entry.prompt_len,
        remaining_ms=min(max(0, int((entry.deadline - now) * 1000)), _DAY_MS),
    )


def abort(entry: Entry, token: bytes) -> wire.Abort:
    """Give the entry up."""
    return wire.Abort(token=token, seq=entry.seq, room=entry.room, code=entry.abort_code)
