"""Prefill instances with an LRU cache of KV blocks, routers that each see some of the requests and only their own legs."""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.affinity.workloads import BLOCK_TOKENS, Request

INSTANCES: Final = 8
CACHE_BLOCKS: Final = 2000
TOKENS_PER_S: Final = 20_000
FIXED_S: Final = 0.004


class Router(Protocol):
    """One router's way of choosing; it may remember what it saw."""

    def choose(self, request: Request, chain: Sequence[int], legs: Sequence[int]) -> int:
        """The number of an instance; ``legs`` are this router's own, by instance."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a workload went: the share of blocks found in a cache, latencies of prefill, most requests over the mean.

    ``homes``: the instances that each conversation was at, where that is known. ``failed`` requests were not answered
    well. Only real processes have a 99th percentile by the wall, and may be ``slowed`` so many times by their machine.
    """

    hit_rate: float
    p50_s: float
    p99_s: float
    imbalance: float
    homes: Mapping[int, set[int]] = field(default_factory=dict)
    failed: int = 0
    wall_p99_s: float = 0.0
    slowed: float = 1.0


class Cache:
    """One instance: first come, first served; a block is computed once and kept until it is the oldest."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._free_at = 0.0
        self.served = self.found = self.asked = 0

    def serve(self, at: float, chain: Sequence[int]) -> float:
        """When the prefill is done."""
        hit = 0
        while hit < len(chain) and chain[hit] in self._blocks:
            self._blocks.move_to_end(chain[hit])
            hit += 1
        self._blocks.update(dict.fromkeys(chain[hit:]))
        while len(self._blocks) > CACHE_BLOCKS:
            self._blocks.popitem(last=False)
        self.served, self.found, self.asked = self.served + 1, self.found + hit, self.asked + len(chain)
        computed = FIXED_S + (len(chain) - hit) * BLOCK_TOKENS / TOKENS_PER_S
        self._free_at = max(at, self._free_at) + computed
        return self._free_at


def simulate(
    requests: Sequence[Request], routers: int, make: Callable[[int], Router], seed: int = 1
) -> Outcome:
    """Each request goes to a random one of ``routers``, each made anew by ``make`` with its number."""
    dice, known = random.Random(seed), dict[tuple[int, tuple[object, ...]], int]()
    caches = [Cache() for _ in range(INSTANCES)]
    asked = [make(number) for number in range(routers)]
    legs = [[0] * INSTANCES for _ in range(routers)]
    open_legs: list[tuple[float, int, int]] = []
    latencies: list[float] = []
    homes: dict[int, set[int]] = {}
    for request in requests:
        while open_legs and open_legs[0][0] <= request.at:
            _, router, instance = heapq.heappop(open_legs)
            legs[router][instance] -= 1
        router, chain = dice.randrange(routers), request.blocks(known)
        instance = asked[router].choose(request, chain, legs[router])
        done = caches[instance].serve(request.at, chain)
        legs[router][instance] += 1
        heapq.heappush(open_legs, (done, router, instance))
        latencies.append(done - request.at)
        homes.setdefault(request.conversation, set()).add(instance)
    counts = [(cache.served, cache.found, cache.asked) for cache in caches]
    return outcome_of(counts, latencies, homes)


def outcome_of(
    counts: Sequence[Sequence[int]],
    latencies: Sequence[float],
    homes: Mapping[int, set[int]] | None = None,
    *,
    failed: int = 0,
    wall_p99_s: float = 0.0,
    slowed: float = 1.0,
) -> Outcome:
    """What happened at the instances (requests served, blocks found, blocks asked for) and to the requests."""
    latencies = sorted(latencies) or [math.inf]
    served, found, asked = (sum(column) for column in zip(*counts, strict=True))
    return Outcome(
        hit_rate=found / max(1, asked),
        p50_s=latencies[len(latencies) // 2],
        p99_s=latencies[int(len(latencies) * 0.99)],
        imbalance=max(one for one, _, _ in counts) * len(counts) / max(1, served),
        homes=homes or {},
        failed=failed,
        wall_p99_s=wall_p99_s,
        slowed=slowed,
    )
