"""What is refused, for how long, and what clears it."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from pdcore.router.api import ClientRequest, parse
from pdcore.router.poison import MOST, REFUSED_S, Poison, fingerprint

pytestmark = pytest.mark.unit

P, Q = ("p", "i1"), ("q", "i1")
KILLER, OTHER = b"killer", b"other"
T0 = 1000.0


def request(**fields: object) -> ClientRequest:
    return parse("completions", json.dumps({"prompt": "hi", **fields}).encode())


def test_two_deaths_of_two_incarnations_are_enough_and_one_is_not() -> None:
    poison = Poison()
    assert poison.died(P, KILLER, T0) == 1
    assert poison.died(P, KILLER, T0) == 1, "the same death, seen on both legs"
    assert poison.refuse_for_s(KILLER, T0) == 0
    assert poison.died(Q, KILLER, T0 + 1) == 2
    assert poison.refuse_for_s(KILLER, T0 + 1) == REFUSED_S
    assert poison.refuse_for_s(OTHER, T0 + 1) == 0
    assert poison.refused == 1


def test_the_same_instance_may_die_twice() -> None:
    poison = Poison()
    poison.died(P, KILLER, T0)
    poison.died(("p", "i2"), KILLER, T0 + 30)
    assert poison.refuse_for_s(KILLER, T0 + 30) == REFUSED_S


def test_a_minute_after_the_last_death_it_may_be_sent_again() -> None:
    poison = Poison()
    poison.died(P, KILLER, T0)
    poison.died(Q, KILLER, T0 + 10)
    assert poison.refuse_for_s(KILLER, T0 + 69) == pytest.approx(1)
    assert poison.refuse_for_s(KILLER, T0 + 70) == 0
    assert not poison, "and nothing is left of it"


def test_deaths_a_minute_apart_have_nothing_to_do_with_each_other() -> None:
    poison = Poison()
    poison.died(P, KILLER, T0)
    assert poison.died(Q, KILLER, T0 + REFUSED_S) == 1


def test_an_answer_clears_it() -> None:
    poison = Poison()
    poison.died(P, KILLER, T0)
    poison.answered(KILLER)
    poison.answered(OTHER)
    assert poison.died(Q, KILLER, T0) == 1


def test_it_holds_a_bounded_number_and_forgets_the_oldest() -> None:
    poison = Poison()
    for number in range(MOST + 1):
        poison.died(P, str(number).encode(), T0)
    assert poison.died(Q, b"0", T0) == 1
    assert poison.died(Q, str(MOST).encode(), T0) == 2


def test_the_order_of_fields_makes_no_difference_and_everything_else_does() -> None:
    fields = {"prompt": "hi", "seed": 1, "max_tokens": 2}
    spelled = [json.dumps(dict(order)).encode() for order in permutations(fields.items())]
    assert len({fingerprint(parse("completions", body)) for body in spelled}) == 1
    others = [request(), request(seed=1), request(seed=2), request(prompt="ho")]
    assert len({fingerprint(one) for one in others}) == len(others)
    assert fingerprint(parse("generate", b'{"prompt":"hi"}')) != fingerprint(request())
    assert fingerprint(request(bootstrap_room=7)) == fingerprint(request()), "where it goes is not what it is"
