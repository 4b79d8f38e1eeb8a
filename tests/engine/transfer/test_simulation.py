"""Seeded histories of both sides against a hostile transport: no foreign byte, nothing left over, every end once."""

from __future__ import annotations

import pytest

from pdcore.engine.transfer.mapping import GroupSizes
from tests.engine.transfer import world

ROUNDS, LONG_ROUNDS, STEPS = 500, 10_000, 40
ONE, TWO = GroupSizes(1, 1), GroupSizes(1, 2)
PAIRS = [
    pytest.param(ONE, ONE, id="1x1"),
    pytest.param(TWO, ONE, id="2x1"),
    pytest.param(ONE, TWO, id="1x2"),
    pytest.param(TWO, TWO, id="2x2"),
    pytest.param(GroupSizes(2, 1), ONE, id="cp2x1"),
]
MUST_HAPPEN = {
    "arrived",
    "drained",
    "delivered",
    "failed",
    "in_doubt",
    "late",
    "sent",
    "sent ahead",
    "all ahead",
    "signs also",
    "signs late",
    "written",
    "send failed",
    "freed",
    "proven",
    "refused",
}


@pytest.mark.unit
@pytest.mark.slow
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_no_history_writes_a_foreign_byte_or_leaks(prefill: GroupSizes, decode: GroupSizes) -> None:
    seen = world.run(range(ROUNDS // len(PAIRS)), prefill, decode, STEPS)
    assert set(seen) >= MUST_HAPPEN, "too tame to prove anything"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
@pytest.mark.parametrize("chunk", range(4))
def test_ten_thousand_histories(prefill: GroupSizes, decode: GroupSizes, chunk: int) -> None:
    each = LONG_ROUNDS // len(PAIRS) // 4
    first = ROUNDS + chunk * each
    seen = world.run(range(first, first + each), prefill, decode, STEPS)
    assert set(seen) >= MUST_HAPPEN, "too tame to prove anything"
