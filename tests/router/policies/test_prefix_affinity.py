"""Where conversations live: alike in every router, evenly, at as many instances as their shared part is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pdcore.router.policies.lots import seed
from pdcore.router.policies.prefix_affinity import (
    BALANCE,
    SLACK,
    USUAL_CACHE_TOKENS,
    PrefixAffinity,
    dp_rank,
    fits_everywhere,
)
from pdcore.router.want import Part, Prefix, Want
from pdcore.topology.instance import Instance
from tests.router.policies.fleet import WANT, FixedLoad, choice, chosen, instance, instances

pytestmark = pytest.mark.unit

AFFINITY = PrefixAffinity()
EIGHT = instances(8)
SESSIONS = 4000
SOME = 2000
FEW = 400
MUCH = 1 << 40


def conversation(number: int, *shared: Part, shared_bytes: int = 0) -> Want:
    own = Part(seed(f"conversation {number}"), 0.0)
    return structs.replace(WANT, prefix=Prefix(path=(*shared, own), shared_bytes=shared_bytes))


def homes(
    candidates: Sequence[Instance], *shared: Part, shared_bytes: int = 0, count: int = FEW
) -> list[str]:
    """Where each conversation lives."""
    wants = (conversation(number, *shared, shared_bytes=shared_bytes) for number in range(count))
    return [chosen(AFFINITY, candidates, want) for want in wants]


def test_conversations_spread_evenly() -> None:
    shares = Counter(homes(EIGHT, count=SESSIONS))
    assert len(shares) == 8
    assert all(abs(share - SESSIONS / 8) < 0.1 * SESSIONS / 8 for share in shares.values()), shares


def test_when_one_leaves_only_its_own_conversations_move_and_they_come_back_with_it() -> None:
    before = homes(EIGHT, count=SOME)
    without = homes([one for one in EIGHT if one.instance_id != "prefill-003"], count=SOME)
    moved = [old for old, new in zip(before, without, strict=True) if old != new]
    assert set(moved) == {"prefill-003"}
    assert len(moved) <= 0.15 * len(before)
    restarted = [
        replace(one, record=one.record._replace(incarnation="i2", url="http://127.0.0.2:9")) for one in EIGHT
    ]
    assert homes(restarted) == before[:FEW]


def test_an_instance_of_another_name_takes_only_its_own_share_from_the_others() -> None:
    kept = [one for one in EIGHT if one.instance_id != "prefill-003"]
    before, after = (homes(fleet, count=SOME) for fleet in (EIGHT, [*kept, instance("prefill-new")]))
    moved = [
        (old, new) for old, new in zip(before, after, strict=True) if old != new and old != "prefill-003"
    ]
    assert {new for _, new in moved} == {"prefill-new"}
    assert len(moved) <= 0.15 * len(before)


def test_what_is_shared_is_everywhere_while_it_fits_and_where_it_is_worth_it_beyond() -> None:
    for share, instances_worth in ((0.01, 1), (0.1, 1), (0.2, 2), (0.5, 5), (1.0, 8)):
        tenant = Part(seed("tenant"), share)
        assert len(set(homes(EIGHT, tenant, shared_bytes=1000))) == 8
        assert len(set(homes(EIGHT, tenant, shared_bytes=MUCH))) == instances_worth


def test_a_shared_part_within_another_lives_where_that_one_does() -> None:
    preamble, tenant = Part(seed("preamble"), 0.4), Part(seed("tenant"), 0.2)
    outer = set(homes(EIGHT, preamble, shared_bytes=MUCH))
    inner = set(homes(EIGHT, preamble, tenant, shared_bytes=MUCH))
    assert (len(outer), len(inner)) == (4, 2)
    assert inner < outer


def test_the_smallest_cache_decides_what_fits_and_one_that_does_not_say_has_a_usual_one() -> None:
    prefix = Prefix(path=(Part(1, 1.0),), shared_bytes=4096)
    assert fits_everywhere(prefix, instances(2, kv_tokens=4096))
    assert not fits_everywhere(prefix, [*instances(2, kv_tokens=4096), instance("small", kv_tokens=4095)])
    silent = instances(1, kv_tokens=0)
    assert fits_everywhere(structs.replace(prefix, shared_bytes=USUAL_CACHE_TOKENS), silent)
    assert not fits_everywhere(structs.replace(prefix, shared_bytes=USUAL_CACHE_TOKENS + 1), silent)


def test_what_is_too_much_for_one_goes_to_the_next_in_the_same_order_everywhere() -> None:
    want = conversation(1, Part(seed("tenant"), 0.2), shared_bytes=MUCH)
    load = FixedLoad({})
    order: list[str] = []
    for _ in range(7):
        home = choice(AFFINITY, EIGHT, want, load).instance.instance_id
        order.append(home)
        load = FixedLoad({**load.legs, home: 1000})
    assert len(set(order)) == 7
    assert set(order[:2]) == set(homes(EIGHT, Part(seed("tenant"), 0.2), shared_bytes=MUCH))
    other = conversation(2, Part(seed("tenant"), 0.2), shared_bytes=MUCH)
    full = FixedLoad(dict.fromkeys(order[:2], 1000))
    assert choice(AFFINITY, EIGHT, other, full).instance.instance_id == order[2], "the tenant's own third"


@settings(deadline=None)
@given(
    legs=st.lists(st.integers(0, 200), min_size=2, max_size=12),
    number=st.integers(0, 100),
    share=st.floats(0, 1),
    shared_bytes=st.sampled_from([0, MUCH]),
)
def test_nobody_is_given_more_than_the_bound(
    legs: list[int], number: int, share: float, shared_bytes: int
) -> None:
    candidates = instances(len(legs))
    load = FixedLoad({one.instance_id: count for one, count in zip(candidates, legs, strict=True)})
    want = conversation(number, Part(seed("tenant"), share), shared_bytes=shared_bytes)
    home = choice(AFFINITY, candidates, want, load).instance.instance_id
    assert load.in_flight(home) <= BALANCE * (sum(legs) + 1) / len(legs) + SLACK


def test_without_a_prefix_the_requests_own_chance_decides() -> None:
    drawn = {chosen(AFFINITY, EIGHT, structs.replace(WANT, draw=seed(str(number)))) for number in range(100)}
    assert len(drawn) == 8


def test_a_conversation_keeps_its_dp_rank_and_ranks_are_even_within_one_instance() -> None:
    wide = instances(8, dp_size=4)
    prefixes = [conversation(number).prefix for number in range(SESSIONS)]
    ranks = [dp_rank(prefix, wide, wide[3]) for prefix in prefixes if prefix is not None]
    shares = Counter(ranks)
    assert sorted(shares) == [0, 1, 2, 3]
    assert all(abs(share - SESSIONS / 4) < 0.1 * SESSIONS / 4 for share in shares.values()), shares
    at_home = [rank for rank, home in zip(ranks, homes(wide), strict=False) if home == "prefill-003"]
    assert sorted(set(at_home)) == [0, 1, 2, 3], "a rank does not follow from the instance"


def test_what_does_not_fit_is_at_as_few_dp_ranks_as_it_is_worth() -> None:
    wide = instances(8, dp_size=4)
    for share, ranks_worth in ((0.01, 1), (0.05, 2), (0.2, 4)):
        wants = (
            conversation(number, Part(seed("tenant"), share), shared_bytes=MUCH) for number in range(200)
        )
        ranks = {dp_rank(want.prefix, wide, wide[3]) for want in wants if want.prefix is not None}
        assert len(ranks) == ranks_worth
