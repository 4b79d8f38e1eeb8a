"""Prompts that begin alike go where their beginning is cached; routers agree on where without talking to each other.

Every conversation has a home by rendezvous hashing, so its later turns find their KV. What is shared by many
conversations (a system prompt, a document) ends up wherever one of them lives. That is best while everything that is
shared fits every cache beside the conversations. Beyond, a shared part may live only at as many instances as its share
of the traffic is worth, chosen by rendezvous too, and its conversations live among those. Nobody takes more than a
quarter above the mean of this router's legs and ``SLACK`` more: what is too much goes to the next in the same order, so
that also the second choice is always the same. Lots are drawn for seats (:mod:`pdcore.router.policies.names`): who comes
in the place of one that went inherits its conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from math import ceil
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import lots, seed
from pdcore.router.policies.names import Names, NamesOf, name_of
from pdcore.router.want import Load, Part, Prefix, Want
from pdcore.topology.instance import Instance

BALANCE: Final = 1.25
SLACK: Final = 3
"""Legs above the bound that count for nothing. With one, bursts at low load cost up to 9 points of hits (simulated)."""
REPLICATED: Final = 0.25  # the share of a cache that may hold what everybody has
BYTES_PER_TOKEN: Final = 4
USUAL_CACHE_TOKENS: Final = 131_072  # of an instance that does not say
Place = tuple[int, int]
"""How far an instance is from where a prompt belongs, and its lot among those equally far."""


class PrefixAffinity:
    """Without a prefix the request's chance is its key.

    Mutable: what its candidates draw by, which is the same for every request between two events.
    """

    name: Final = "prefix_affinity"
    terms: Final = ("over the bound", "outside the prefix's part of the fleet", "lot", "lot within the seat")

    def __init__(self) -> None:
        self._names_of = NamesOf()

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        flights = [load.in_flight(one.instance_id) for one in candidates]
        bound = BALANCE * (sum(flights) + 1) / len(candidates) + SLACK
        names = self._names_of(candidates)
        places = _placed(candidates, names, want)
        within = lots(_key(want), names.within) if names.within else repeat(0, len(candidates))
        return [
            (float(flight > bound), away, drawn, among)
            for flight, (away, drawn), among in zip(flights, places, within, strict=True)
        ]


def dp_rank(prefix: Prefix, candidates: Sequence[Instance], chosen: Instance) -> int:
    """The DP rank of ``chosen`` in whose cache the conversation lives, by the same rule as the instance itself."""
    size = chosen.record.dp_size
    name = name_of(chosen)
    seeds = [seed(f"{name}/{rank}") for rank in range(size)]
    placed = _partitioned(seeds, *_path(prefix, candidates), among=size * len(candidates))
    return placed.index(min(placed))


def fits_everywhere(prefix: Prefix, candidates: Sequence[Instance]) -> bool:
    """Whether all that prompts share may be in every cache; each DP rank has its own."""
    records = [one.record for one in candidates]
    smallest = min((one.kv_tokens or USUAL_CACHE_TOKENS) / one.dp_size for one in records)
    return prefix.shared_bytes <= REPLICATED * smallest * BYTES_PER_TOKEN


def _placed(candidates: Sequence[Instance], names: Names, want: Want) -> Sequence[Place]:
    """Where each candidate stands for the prompt."""
    if want.prefix is None:
        return [(0, drawn) for drawn in lots(want.draw, names.seeds)]
    return _partitioned(names.seeds, *_path(want.prefix, candidates), among=len(candidates))


def _key(want: Want) -> int:
    """What everything that belongs together has alike."""
    return want.draw if want.prefix is None else want.prefix.path[-1].key


def _path(prefix: Prefix, candidates: Sequence[Instance]) -> tuple[Sequence[Part], Part]:
    """The shared parts that are kept together, and the one that is the prompt's own."""
    *shared, own = prefix.path
    return ((), own) if not shared or fits_everywhere(prefix, candidates) else (shared, own)


def _partitioned(seeds: Sequence[int], shared: Sequence[Part], own: Part, *, among: int) -> Sequence[Place]:
    """Each shared part keeps what its share of ``among`` is worth of what the part before it kept; the rest comes later."""
    if not shared:
        return [(0, drawn) for drawn in lots(own.key, seeds)]
    found: dict[int, Place] = {}
    kept = seeds
    for depth, part in enumerate(shared):
        ordered = sorted(zip(lots(part.key, kept), kept, strict=True))
        worth = max(1, ceil(part.share * among * BALANCE))
        found |= {one: (len(shared) - depth, drawn) for drawn, one in ordered[worth:]}
        kept = [one for _, one in ordered[:worth]]
    found |= {one: (0, drawn) for drawn, one in zip(lots(own.key, kept), kept, strict=True)}
    return [found[one] for one in seeds]
