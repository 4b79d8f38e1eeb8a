"""Which prefill rank writes what into which decode rank. Pure; all ranks of both sides compute the same.

Ranks here are those of one DP group of either side, at (cp, tp). Every decode rank gets the KV of every token and of
the heads it holds, each byte from exactly one prefill rank:

- Equal tp: rank to rank. More decode than prefill ranks: each prefill rank feeds its ``ratio`` neighbours
  (``decode tp // ratio``), which hold parts or copies of what it holds.
- Fewer: decode rank ``d`` is fed by the span of prefill ranks ``d * ratio … (d + 1) * ratio - 1``. What several ranks
  of a span hold alike (repeated heads, MLA's latent) is written by one of them, chosen by ``spread``, so that the
  decode groups of a cluster do not all ask the same rank. A rank that is chosen for nothing has no destination.
- Prefill's context-parallel ranks all hold all tokens: rank ``cp`` of ``n`` sends the ``cp``-th of ``n`` parts of the
  block list. With fewer blocks than ranks some parts are empty; their ranks are sources all the same and write their
  slot only, so that who takes part follows from the pair and never from a request.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pdcore.engine.kv.layout import KvEntry, KvLayout, held_heads, shard_problems
from pdcore.topology.compat import size_problems


class GroupSizes(NamedTuple):
    """How many ranks a DP group has in each direction."""

    cp: int
    tp: int


class GroupRank(NamedTuple):
    """Where a rank stands in its DP group."""

    cp: int
    tp: int

    def __str__(self) -> str:
        return f"{self.cp}.{self.tp}"


@dataclass(frozen=True, slots=True)
class RankMapping:
    """Who feeds whom between two DP groups. ValueError with every reason for sizes that cannot be paired.

    ``layout`` is the whole model's. ``spread`` must be the same number on both sides: :func:`spread_of` decode's.
    """

    prefill: GroupSizes
    decode: GroupSizes
    layout: KvLayout
    spread: int = 0

    def __post_init__(self) -> None:
        wrong = mapping_problems(self.prefill, self.decode, self.layout)
        if wrong:
            raise ValueError("; ".join(wrong))

    def sources_of(self, decode: GroupRank) -> tuple[GroupRank, ...]:
        """The prefill ranks that write into decode rank ``decode``, in order; never none."""
        return _sources(self, self._within(decode, self.decode).tp)

    def destinations_of(self, prefill: GroupRank) -> tuple[GroupRank, ...]:
        """The decode ranks that prefill rank ``prefill`` writes into, in order."""
        rank = self._within(prefill, self.prefill)
        return tuple(GroupRank(0, tp) for tp in range(self.decode.tp) if rank in _sources(self, tp))

    def participants(self) -> tuple[GroupRank, ...]:
        """The prefill ranks that have a destination, in order."""
        return tuple(sorted({rank for tp in range(self.decode.tp) for rank in _sources(self, tp)}))

    def written_heads(self, entry: KvEntry, prefill_tp: int, decode_tp: int) -> range:
        """The heads of the whole ``entry`` that one rank writes into the other; empty for none."""
        ratio = self.prefill.tp // self.decode.tp
        if ratio <= 1:
            writes = prefill_tp == decode_tp * self.prefill.tp // self.decode.tp
        else:
            copies = self._copies(entry, ratio)
            in_span = prefill_tp - decode_tp * ratio
            writes = 0 <= in_span < ratio and in_span % copies == self.spread % copies
        if not writes:
            return range(0)
        held = held_heads(entry, self.prefill.tp, prefill_tp)
        wanted = held_heads(entry, self.decode.tp, decode_tp)
        return range(max(held.start, wanted.start), min(held.stop, wanted.stop))

    def _copies(self, entry: KvEntry, ratio: int) -> int:
        """How many ranks of a span hold the same heads of ``entry``."""
        if entry.sharding == "replicated":
            return ratio
        return min(max(1, self.prefill.tp // entry.heads), ratio)

    def _within(self, rank: GroupRank, sizes: GroupSizes) -> GroupRank:
        if not (0 <= rank.cp < sizes.cp and 0 <= rank.tp < sizes.tp):
            raise ValueError(f"rank {rank} is outside a group of {sizes.cp} x {sizes.tp}")
        return rank


def mapping_problems(prefill: GroupSizes, decode: GroupSizes, layout: KvLayout) -> tuple[str, ...]:
    """Every reason why KV in ``layout`` cannot go from a group of one size to one of the other."""
    return (
        *size_problems(prefill_tp=prefill.tp, decode_cp=decode.cp, decode_tp=decode.tp),
        *shard_problems(layout, prefill.tp, "prefill"),
        *shard_problems(layout, decode.tp, "decode"),
    )


def spread_of(instance_id: str, dp: int) -> int:
    """Decode's number in :class:`RankMapping`: consecutive for the DP groups of an instance."""
    return zlib.crc32(instance_id.encode()) % 4096 + dp


def block_part(blocks: range, cp: int, cp_size: int) -> range:
    """The part of ``blocks`` that context-parallel rank ``cp`` sends: contiguous, in order, none twice, none left."""
    count = len(blocks)
    return blocks[count * cp // cp_size : count * (cp + 1) // cp_size]


@lru_cache(maxsize=4096)
def _sources(mapping: RankMapping, decode_tp: int) -> tuple[GroupRank, ...]:
    kinds = {
        (entry.sharding, entry.heads): entry for group in mapping.layout.groups for entry in group.entries
    }
    writers = [
        tp
        for tp in range(mapping.prefill.tp)
        if any(mapping.written_heads(entry, tp, decode_tp) for entry in kinds.values())
    ]
    return tuple(GroupRank(cp, tp) for cp in range(mapping.prefill.cp) for tp in writers)
