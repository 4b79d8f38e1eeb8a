"""What holds for every policy, and what each of the small ones does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pdcore.config.policies import ALIASES, POLICY_NAMES
from pdcore.router.policies.base import Policy, choose
from pdcore.router.policies.least_loaded import LeastLoaded
from pdcore.router.policies.lots import lot
from pdcore.router.policies.power_of_two import PowerOfTwo, two_of
from pdcore.router.policies.random import Random
from pdcore.router.policies.room_hash import RoomHash
from pdcore.router.policies.round_robin import RoundRobin
from pdcore.router.policies.selection import POLICIES
from pdcore.router.want import Part, Prefix, Want
from pdcore.topology.instance import Instance
from tests.router.policies.fleet import WANT, FixedLoad, choice, chosen, instance, instances

pytestmark = pytest.mark.unit

KEYS = st.integers(0, 2**64 - 1)
PREFIXES = st.none() | st.builds(
    Prefix,
    path=st.lists(st.builds(Part, KEYS, st.floats(0, 1)), min_size=1, max_size=4).map(tuple),
    shared_bytes=st.integers(0, 1 << 24),
)
WANTS = st.builds(
    Want,
    model=st.just(WANT.model),
    room=st.none() | st.integers(1, 2**63 - 1),
    draw=st.integers(0, 2**63 - 1),
    prefix=PREFIXES,
)
LOADS = st.lists(st.integers(0, 50), min_size=1, max_size=12)
ALL = [pytest.param(policy, id=policy.name) for policy in POLICIES.values()]


def test_every_name_of_the_settings_is_a_policy_and_the_other_way_round() -> None:
    assert tuple(POLICIES) == POLICY_NAMES
    assert set(ALIASES.values()) <= set(POLICY_NAMES)


@pytest.mark.parametrize("policy", ALL)
@settings(deadline=None, max_examples=30)
@given(want=WANTS, legs=LOADS)
def test_each_candidate_gets_one_score_with_a_value_for_every_term(
    policy: Policy, want: Want, legs: list[int]
) -> None:
    candidates, load = _busy(legs)
    scores = policy.scores(candidates, want, load, None)
    assert [len(score) for score in scores] == [len(policy.terms)] * len(candidates)
    assert list(scores) == list(policy.scores(candidates, want, load, None)), "it is pure"


@pytest.mark.parametrize("policy", ALL)
@settings(deadline=None, max_examples=30)
@given(want=WANTS, legs=LOADS)
def test_a_choice_shows_that_nobody_scored_better(policy: Policy, want: Want, legs: list[int]) -> None:
    candidates, load = _busy(legs)
    made = choose(policy, candidates, want, load)
    shown = json.loads(json.dumps(made.explained()))
    assert shown["chosen"] == made.instance.instance_id
    assert list(shown["candidates"]) == [one.instance_id for one in candidates]
    if len(candidates) > 1:
        scores = {name: [terms[term] for term in policy.terms] for name, terms in shown["candidates"].items()}
        assert scores[shown["chosen"]] == min(scores.values())


def _busy(legs: Sequence[int]) -> tuple[Sequence[Instance], FixedLoad]:
    candidates = instances(len(legs))
    return candidates, FixedLoad(
        {one.instance_id: count for one, count in zip(candidates, legs, strict=True)}
    )


def test_round_robin_takes_whoever_waited_longest_whatever_is_in_flight() -> None:
    three = instances(3)
    load = FixedLoad({"prefill-001": 9}, {("prefill-000",): 2, ("prefill-001",): 1, ("prefill-002",): 3})
    assert choice(RoundRobin(), three, load=load).instance.instance_id == "prefill-001"


def test_the_pairs_turn_comes_before_the_decodes_own() -> None:
    partner, decodes = instance("p"), instances(2, "decode")
    load = FixedLoad({}, {("decode-000",): 5, ("decode-001",): 4, ("p", "decode-001"): 1})
    made = choose(RoundRobin(), decodes, WANT, load, partner)
    assert made.instance.instance_id == "decode-000"


def test_least_loaded_takes_the_fewest_legs_and_turns_among_equals() -> None:
    three = instances(3)
    assert chosen(LeastLoaded(), three, prefill_000=2, prefill_001=1, prefill_002=3) == "prefill-001"
    load = FixedLoad({}, {("prefill-000",): 1})
    assert choice(LeastLoaded(), three, load=load).instance.instance_id == "prefill-001"


@pytest.mark.parametrize("policy", [Random(), PowerOfTwo(), RoomHash()])
def test_chance_is_even_over_many_draws(policy: Policy) -> None:
    eight = instances(8)
    shares = Counter(
        chosen(policy, eight, structs.replace(WANT, draw=_spread(number))) for number in range(4000)
    )
    assert len(shares) == 8
    assert all(abs(share - 500) < 100 for share in shares.values()), shares


def _spread(number: int) -> int:
    return lot(number, "a draw") >> 1


@settings(deadline=None)
@given(draw=st.integers(0, 2**63 - 1), legs=st.lists(st.integers(0, 50), min_size=2, max_size=12))
def test_power_of_two_takes_the_less_loaded_of_two_different_ones(draw: int, legs: list[int]) -> None:
    candidates, load = _busy(legs)
    one, other = two_of("prefill", draw, len(legs))
    assert one != other
    made = choose(PowerOfTwo(), candidates, structs.replace(WANT, draw=draw), load)
    assert load.in_flight(made.instance.instance_id) == min(legs[one], legs[other])
    assert made.instance in (candidates[one], candidates[other])


def test_a_room_has_its_place_in_each_role_and_a_request_without_one_goes_by_its_chance() -> None:
    prefills, decodes = instances(5), instances(5, "decode")
    pairs = Counter[tuple[str, str]]()
    for room in range(1, 1001):
        want = structs.replace(WANT, room=room, draw=room * 7)
        assert chosen(RoomHash(), prefills, want) == chosen(
            RoomHash(), prefills, structs.replace(want, draw=1)
        )
        pairs[chosen(RoomHash(), prefills, want), chosen(RoomHash(), decodes, want)] += 1
    assert len(pairs) == 25, "prefill and decode are chosen independently"


def test_lots_are_what_every_version_must_draw() -> None:
    assert (lot(0, "prefill-0"), lot(1, "prefill-0")) == (3139588695234139309, 5136589486561451730)
