"""Lots are drawn for seats: a newcomer inherits from the one in whose place it comes, and nobody else notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pdcore.router.policies.lots import seed
from pdcore.router.policies.names import MOST_LISTS, NamesOf, name_of, names
from pdcore.router.policies.prefix_affinity import PrefixAffinity, dp_rank
from pdcore.router.want import Part, Prefix, Want
from pdcore.topology.instance import Instance
from tests.router.policies.fleet import WANT, choice, chosen, instance, instances

pytestmark = pytest.mark.unit

MUCH = 1 << 40
FEW = 120
SOME = 2000
TENANT = Part(seed("tenant"), 0.3)


def seated(instance_id: str, seat: object, **changes: Any) -> Instance:
    return instance(instance_id, extra={} if seat is None else {"seat": seat}, **changes)


def fleet(*seats: int | None) -> list[Instance]:
    return [seated(f"prefill-{number:03}", seat) for number, seat in enumerate(seats)]


def replaced(candidates: Sequence[Instance], gone: int, new: Instance) -> list[Instance]:
    left = [one for number, one in enumerate(candidates) if number != gone]
    return sorted([*left, new], key=lambda one: one.instance_id)


def homes(candidates: Sequence[Instance], *shared: Part, count: int = FEW) -> list[str]:
    """Where each conversation lives; what ``shared`` holds fits no cache."""
    found = []
    for number in range(count):
        own = Part(seed(f"conversation {number}"), 0.0)
        want = structs.replace(WANT, prefix=Prefix((*shared, own), MUCH if shared else 0))
        found.append(chosen(PrefixAffinity(), candidates, want))
    return found


def test_a_name_is_the_seats_of_its_group_and_role_or_the_id() -> None:
    assert name_of(seated("p", 3)) == "/prefill/3"
    assert name_of(seated("p", 0, group="g", role="unified")) == "g/unified/0"
    absurd: tuple[object, ...] = (None, -1, True, 1.0, "1", [], 1 << 31)
    for nonsense in absurd:
        assert name_of(seated("p", nonsense)) == "p"


def test_names_are_made_once_for_a_list_and_few_are_kept() -> None:
    names_of = NamesOf()
    lists = [fleet(0, 1) for _ in range(3 * MOST_LISTS)]
    assert names_of(lists[0]) is names_of(lists[0])
    assert [names_of(one) for one in lists] == [names(lists[0])] * len(lists)
    other = fleet(5, 1)
    assert names_of(other) == names(other) != names(lists[0])
    assert len(names_of._known) <= MOST_LISTS


def test_seats_alone_spread_conversations_evenly() -> None:
    shares = Counter(homes(fleet(*range(8)), count=SOME))
    assert all(abs(share - SOME / 8) < 0.15 * SOME / 8 for share in shares.values()), shares


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(2, 10),
    gone=st.integers(0, 9),
    new=st.sampled_from(["a-first", "prefill-004-new", "z-last"]),
    shared=st.booleans(),
)
def test_who_comes_in_a_place_inherits_all_that_lived_there_and_nothing_else_moves(
    count: int, gone: int, new: str, shared: bool
) -> None:
    gone %= count
    before, parts = fleet(*range(count)), [TENANT] if shared else []
    after = replaced(before, gone, seated(new, gone))
    renamed = {f"prefill-{gone:03}": new}
    assert homes(after, *parts) == [renamed.get(home, home) for home in homes(before, *parts)]


@settings(deadline=None, max_examples=60)
@given(seats=st.lists(st.none() | st.integers(0, 3), min_size=2, max_size=8), excluded=st.integers(0, 7))
def test_an_exclusion_moves_only_what_lived_there_whatever_seats_are_shared_or_missing(
    seats: list[int | None], excluded: int
) -> None:
    excluded %= len(seats)
    candidates = fleet(*seats)
    without = candidates[:excluded] + candidates[excluded + 1 :]
    for home, then in zip(homes(candidates), homes(without), strict=True):
        assert home == then or home == f"prefill-{excluded:03}"


def test_two_in_one_seat_share_it_and_each_inherits_from_the_other() -> None:
    before, crowded = fleet(0, 1, 2, 3), [*fleet(0, 1, 2, 3), seated("z", 2)]
    were, are = homes(before, count=SOME), homes(crowded, count=SOME)
    moved = Counter((home, then) for home, then in zip(were, are, strict=True) if home != then)
    assert moved.keys() == {("prefill-002", "z")}
    assert 0.4 < Counter(are)["z"] / Counter(were)["prefill-002"] < 0.6
    assert homes(crowded[:2] + crowded[3:], count=SOME) == [
        "z" if home == "prefill-002" else home for home in were
    ]


def test_the_same_seat_in_another_group_is_another_one() -> None:
    candidates = [seated("a", 0), seated("b", 0, group="g"), seated("c", 0, group="h")]
    assert names(candidates).within == ()
    assert set(homes(candidates)) == {"a", "b", "c"}


def test_shared_seats_without_a_prefix_go_by_the_requests_chance() -> None:
    wants = [Want(model=WANT.model, draw=seed(f"{number}")) for number in range(FEW)]
    assert {chosen(PrefixAffinity(), fleet(0, 0, 0), want) for want in wants} == {
        "prefill-000",
        "prefill-001",
        "prefill-002",
    }


def test_a_choice_within_a_seat_is_explained() -> None:
    told = choice(PrefixAffinity(), fleet(0, 0)).explained()["candidates"]
    assert isinstance(told, dict)
    assert len({terms["lot"] for terms in told.values()}) == 1
    assert len({terms["lot within the seat"] for terms in told.values()}) == 2
    alone = choice(PrefixAffinity(), fleet(0, None)).explained()["candidates"]
    assert isinstance(alone, dict)
    assert {terms["lot within the seat"] for terms in alone.values()} == {0}


def test_the_dp_rank_goes_with_the_seat() -> None:
    before = [seated(f"prefill-{seat:03}", seat, dp_size=4) for seat in range(4)]
    after = replaced(before, 2, seated("new", 2, dp_size=4))
    prefixes = [Prefix((Part(seed(f"conversation {number}"), 0.0),), 0) for number in range(FEW)]
    ranks = [dp_rank(prefix, before, before[2]) for prefix in prefixes]
    assert [dp_rank(prefix, after, after[0]) for prefix in prefixes] == ranks
    assert after[0].instance_id == "new"
    assert set(ranks) == {0, 1, 2, 3}
    assert [dp_rank(prefix, before, instances(1, dp_size=4)[0]) for prefix in prefixes] != ranks
