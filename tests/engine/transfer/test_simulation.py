"""500 seeded histories of both ledgers against a hostile transport: no foreign byte, nothing left over."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.transfer.world import World

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROUNDS, CHUNKS, STEPS = 500, 10, 80


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_history_writes_a_foreign_byte_or_leaks(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk, ROUNDS, CHUNKS):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        world.settle()
        seen += world.seen
    assert {"arrived", "drained", "delivered", "failed", "in_doubt"} <= set(seen), (
        "too tame to prove anything"
    )
