"""Who may register where: one address for a position, one position for an address, one layout for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.facade.bodies import Address, RankRegistration, Shared
from pdcore.registry.facade.rank_table import AskFirst, RankTable, Refusal
from pdcore.topology.keys import RankPosition

pytestmark = pytest.mark.unit

SHARED = Shared(
    tp_size=2, cp_size=1, dp_size=1, block_sizes=(16,), kv_cache_dtype="bfloat16", max_prefill_tokens=None
)
A, B, C = RankPosition(0, 0, 0), RankPosition(0, 0, 1), RankPosition(0, 0, 2)


def rank(position: RankPosition, port: int, **shared: Any) -> RankRegistration:
    said = {name: getattr(SHARED, name) for name in Shared.__dataclass_fields__} | shared
    return RankRegistration(shared=Shared(**said), position=position, address=Address("127.0.0.1", port))


def at(port: int) -> Address:
    return Address("127.0.0.1", port)


def table(*ranks: RankRegistration) -> RankTable:
    some = RankTable()
    for one in ranks:
        assert some.judge(one) is None
        some.accept(one)
    return some


def test_it_is_complete_with_every_rank() -> None:
    some = table(rank(A, 1))
    assert not some.is_complete
    some.accept(rank(B, 2))
    assert some.is_complete
    assert some.answering == {A: at(1), B: at(2)}


def test_the_same_may_be_said_again() -> None:
    some = table(rank(A, 1), rank(B, 2), rank(A, 1))
    assert some.answering == {A: at(1), B: at(2)}


def test_another_value_is_refused_with_its_field() -> None:
    some = table(rank(A, 1))
    refusal = some.judge(rank(B, 2, kv_cache_dtype="int8"))
    assert refusal == Refusal("kv_cache_dtype", "the instance has 'bfloat16', this rank says 'int8'")


def test_what_one_leaves_unsaid_another_may_say() -> None:
    some = table(rank(A, 1), rank(B, 2, max_prefill_tokens=512))
    assert some.shared is not None
    assert some.shared.max_prefill_tokens == 512
    refusal = some.judge(rank(A, 1, max_prefill_tokens=513))
    assert isinstance(refusal, Refusal)
    assert refusal.field == "max_prefill_tokens"


def test_a_taken_position_is_given_away_once_its_holder_does_not_answer() -> None:
    some = table(rank(A, 1))
    assert some.judge(rank(A, 3)) == AskFirst(at(1))
    assert not some.probed(A, at(1), "answers")
    assert some.judge(rank(A, 3)) == AskFirst(at(1))
    assert some.probed(A, at(1), "refuses")
    assert some.judge(rank(A, 3)) is None
    some.accept(rank(A, 3))
    assert some.answering == {A: at(3)}


def test_an_address_has_one_position() -> None:
    some = table(rank(A, 1), rank(B, 2))
    assert some.judge(rank(B, 1)) == Refusal("rank_port", "127.0.0.1:1 is rank 0.0.0 already")


def test_an_address_that_does_not_answer_may_become_another_rank() -> None:
    wide = {"tp_size": 3}
    some = table(rank(A, 1, **wide), rank(B, 2, **wide))
    some.probed(A, at(1), "refuses")
    assert some.judge(rank(C, 1, **wide)) is None
    some.accept(rank(C, 1, **wide))
    assert some.addresses == {B: at(2), C: at(1)}


def test_ranks_that_swap_ports_over_a_restart_get_through() -> None:
    some = table(rank(A, 1), rank(B, 2))
    assert isinstance(
        some.judge(rank(B, 1)), Refusal
    )  # the new B has the old A's port, where it answers itself
    assert some.judge(rank(A, 3)) is None
    some.accept(rank(A, 3))
    some.probed(B, at(2), "refuses")
    assert some.judge(rank(B, 1)) is None


def test_a_refusal_withdraws_at_once_and_silence_the_second_time() -> None:
    some = table(rank(A, 1), rank(B, 2))
    assert some.probed(A, at(1), "refuses")
    assert some.answering == {B: at(2)}
    assert not some.probed(B, at(2), "silent")
    assert not some.probed(B, at(2), "answers")
    assert not some.probed(B, at(2), "silent")
    assert some.probed(B, at(2), "silent")
    assert some.answering == {}


def test_who_answers_again_is_put_back() -> None:
    some = table(rank(A, 1), rank(B, 2))
    some.probed(A, at(1), "refuses")
    assert some.addresses == {A: at(1), B: at(2)}
    assert some.probed(A, at(1), "answers")
    assert some.is_complete


def test_a_probe_of_an_address_that_has_moved_on_says_nothing() -> None:
    some = table(rank(A, 1))
    assert not some.probed(A, at(9), "refuses")
    assert not some.probed(B, at(9), "refuses")
    assert some.answering == {A: at(1)}


def test_once_none_answers_another_layout_may_begin() -> None:
    some = table(rank(A, 1), rank(B, 2))
    some.probed(A, at(1), "refuses")
    assert isinstance(some.judge(rank(A, 5, tp_size=1)), Refusal)
    some.probed(B, at(2), "refuses")
    assert some.judge(rank(A, 5, tp_size=1)) is None
    some.accept(rank(A, 5, tp_size=1))
    assert (some.is_complete, some.addresses) == (True, {A: at(5)})


STEPS = st.tuples(
    st.sampled_from(["register", "answers", "refuses", "silent"]),
    st.sampled_from([A, B, C]),
    st.integers(1, 3),
    st.sampled_from(["bfloat16", "int8"]),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_no_address_ever_stands_twice_and_all_agree(steps: list[tuple[Any, RankPosition, int, str]]) -> None:
    some, said = RankTable(), dict[RankPosition, str]()
    for step, position, port, dtype in steps:
        if step == "register":
            one = rank(position, port, kv_cache_dtype=dtype, tp_size=3)
            answering = bool(some.answering)
            if some.judge(one) is None:
                some.accept(one)
                said = {position: dtype} if not answering else said | {position: dtype}
        else:
            some.probed(position, at(port), step)
        addresses = list(some.addresses.values())
        assert len(set(addresses)) == len(addresses)
        assert some.answering.items() <= some.addresses.items()
        if some.shared is not None:
            assert {said[at_] for at_ in some.addresses} <= {some.shared.kv_cache_dtype}
