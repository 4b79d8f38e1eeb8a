"""The policies that are compared: ours as it runs in the router, and the tree per router that Rust routers keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.affinity.simulation import CACHE_BLOCKS, INSTANCES
from bench.affinity.workloads import BLOCK_TOKENS, Request
from pdcore.router.policies.base import choose
from pdcore.router.policies.prefix_affinity import PrefixAffinity
from pdcore.router.policies.shared_prefixes import SharedPrefixes
from pdcore.router.want import Want
from pdcore.topology.instance import Instance
from tests.support.fleet import instance_record

FLEET: Final = [
    Instance(
        instance_id=f"prefill-{number}",
        record=instance_record("prefill", kv_tokens=CACHE_BLOCKS * BLOCK_TOKENS),
        mod_revision=1,
        ranks={},
        uncounted={},
        order=None,
    )
    for number in range(INSTANCES)
]
NUMBERS: Final = {one.instance_id: number for number, one in enumerate(FLEET)}


class Idle:
    """The load of a router that has nothing in flight."""

    def in_flight(self, instance_id: str) -> int:
        return 0

    def last_use(self, *instance_ids: str) -> int:
        return 0


IDLE: Final = Idle()


class Affinity:
    """``prefix_affinity``: the product's own code."""

    def __init__(self, number: int) -> None:
        self._memory = SharedPrefixes()
        self._policy = PrefixAffinity()
        self._legs: Sequence[int] = ()

    def choose(self, request: Request, chain: Sequence[int], legs: Sequence[int]) -> int:
        self._legs = legs
        want = Want(model="m", prefix=self._memory.see(request.prompt(), request.at))
        return NUMBERS[choose(self._policy, FLEET, want, self).instance.instance_id]

    def in_flight(self, instance_id: str) -> int:
        return self._legs[NUMBERS[instance_id]]

    def last_use(self, *instance_ids: str) -> int:
        return 0


class Tree:
    """``cache_aware`` of the Rust routers: whoever served the longest known match, else whose tree is smallest."""

    MATCH = 0.3
    LEGS = 64
    RATIO = 1.5

    def __init__(self, number: int) -> None:
        self._owners: dict[int, int] = {}
        self._sizes = [0] * INSTANCES

    def choose(self, request: Request, chain: Sequence[int], legs: Sequence[int]) -> int:
        instance = self._best(chain, legs)
        for block in chain:
            self._sizes[instance] += block not in self._owners
            self._owners[block] = instance
        return instance

    def _best(self, chain: Sequence[int], legs: Sequence[int]) -> int:
        if max(legs) - min(legs) > self.LEGS and max(legs) > self.RATIO * min(legs):
            return legs.index(min(legs))
        matched = 0
        while matched < len(chain) and chain[matched] in self._owners:
            matched += 1
        if matched > self.MATCH * len(chain):
            return self._owners[chain[matched - 1]]
        return self._sizes.index(min(self._sizes))


class Turns:
    """``round_robin``, each router from another instance on."""

    def __init__(self, number: int) -> None:
        self._next = number * 3

    def choose(self, request: Request, chain: Sequence[int], legs: Sequence[int]) -> int:
        self._next += 1
        return self._next % INSTANCES
