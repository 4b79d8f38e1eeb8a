"""How long a pair's plan takes: once per pair (hello), and once per request.

    python bench/pair_plan.py [--layers 94] [--tokens 8192] [--rounds 9]

Prints one JSON line per mapping: copies of one request, milliseconds to build the plan and to turn block lists into
copies (best of the rounds, nothing is copied). Block lists are scattered, so that nothing coalesces across blocks.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from pdcore.engine.kv.layout import KvLayout, Order
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes, RankMapping
from pdcore.engine.transfer.pair_plan import PairPlan
from pdcore.engine.transfer.plan import RegionShape

BLOCKS = 4096
FIRST = GroupRank(0, 0)


def best_ms(action: Callable[[], object], rounds: int) -> float:
    """Milliseconds of the fastest round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return round(min(times) * 1000, 2)


def measure(
    prefill: int, decode: int, order: Order, layers: int, tokens: int, rounds: int
) -> dict[str, object]:
    """One mapping between rank 0 of both sides."""
    whole = KvLayout.dense(
        layers=layers,
        kv_heads=4,
        head_dim=128,
        block_size=16,
        itemsize=2,
        dtype_name="bfloat16",
        order=order,
    )
    mapping = RankMapping(GroupSizes(1, prefill), GroupSizes(1, decode), whole)
    source = RegionShape(whole.shard(prefill, 0), (BLOCKS,))
    destination = RegionShape(whole.shard(decode, 0), (BLOCKS,))

    def build() -> PairPlan:
        return PairPlan.build(mapping, FIRST, FIRST, source, destination)

    plan, scattered = build(), random.Random(1)
    needed = whole.blocks_for(tokens)
    here, there = ((tuple(scattered.sample(range(BLOCKS), needed)),) for _ in range(2))
    return {
        "tp": f"{prefill}->{decode}",
        "order": order,
        "copies": len(plan.ops(here, there, tokens)),
        "build_ms": best_ms(build, rounds),
        "request_ms": best_ms(lambda: plan.ops(here, there, tokens), rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=94)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    orders: tuple[Order, ...] = ("token", "head")
    for prefill, decode in ((4, 4), (4, 2), (2, 4)):
        for order in orders:
            figures = measure(prefill, decode, order, given.layers, given.tokens, given.rounds)
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
