"""What answers make of an engine at a fixed address."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.probe import Health
from pdcore.router.fixed.asking import heard
from pdcore.router.fixed.standing import SILENT, Answers, Fails, Heard, Silent, Standing
from pdcore.router.models import ANY_MODEL

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

REFUSES = Fails(why="it refuses connections")


class Fresh:
    """Incarnations n1, n2, …"""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"n{next(self._numbers)}"


def after(*said: Heard) -> Standing:
    """The standing of an engine that was heard to say so, one after another."""
    fresh = Fresh()
    standing = Standing(incarnation="n0")
    for one in said:
        standing = standing.after(one, fresh)
    return standing


def test_it_comes_up_with_its_first_answer_and_what_it_serves() -> None:
    assert not Standing(incarnation="n0").is_up
    assert after(Answers(models=("m",))) == Standing(
        incarnation="n0", is_up=True, models=("m",), knows_models=True, why=""
    )
    assert after(Answers()).models == (ANY_MODEL,)


def test_who_is_up_and_has_not_said_what_it_serves_says_it_later_and_stays_who_it_is() -> None:
    assert after(Answers(), Answers(models=("m",))) == after(Answers(models=("m",)))
    known = after(Answers(models=("m",)))
    assert known.after(Answers(models=("n",)), Fresh()) is known, "it was not asked again"
    assert not after(Answers(models=("m",)), REFUSES).knows_models, "who comes back may serve another one"


def test_who_names_an_incarnation_has_that_one() -> None:
    assert after(Answers(incarnation="a")).incarnation == "a"
    assert after(Answers(incarnation="a"), Answers(incarnation="b")).incarnation == "b"
    assert after(Answers(incarnation="a"), REFUSES, Answers(incarnation="a")).incarnation == "a"


def test_who_goes_down_is_another_one_from_then_on() -> None:
    down = after(Answers(models=("m",)), REFUSES)
    assert down == Standing(incarnation="n1", is_up=False, models=("m",), why=REFUSES.why)
    assert after(Answers(), REFUSES, REFUSES, Silent(), Answers()).incarnation == "n1"


def test_silence_alone_takes_nobody_down() -> None:
    assert after(Answers(), Silent(), Silent(), Silent()) == after(Answers())
    assert after(Silent()).why == SILENT


def test_nothing_new_is_the_same_standing() -> None:
    up, down = after(Answers(incarnation="a")), after(REFUSES)
    assert up.after(Answers(incarnation="a"), Fresh()) is up
    assert up.after(Answers(), Fresh()) is up
    assert up.after(Silent(), Fresh()) is up
    assert down.after(REFUSES, Fresh()) is down


sayings = st.lists(
    st.sampled_from([Answers(), Answers(incarnation="a"), Answers(models=("m",)), REFUSES, Silent()])
)


@few
@given(sayings)
def test_no_incarnation_it_had_before_going_down_comes_back_unless_it_says_so(said: list[Heard]) -> None:
    fresh, standing, over = Fresh(), Standing(incarnation="n0"), set[str]()
    for one in said:
        was_up, before = standing.is_up, standing.incarnation
        standing = standing.after(one, fresh)
        if was_up and not standing.is_up:
            over.add(before)
        assert standing.incarnation not in over or standing.incarnation == "a"
        assert standing.is_up == (standing.why == "")


@pytest.mark.parametrize(
    ("health", "says"),
    [
        (Health(200, None), Answers()),
        (Health(200, "a"), Answers(incarnation="a")),
        (Health(200, "a", "ok"), Answers(incarnation="a")),
        (Health(200, "a", "starting"), Fails(why="it is starting")),
        (Health(200, "a", "draining"), Fails(why="it is draining")),
        (Health(200, None, "starting"), Answers()),
        (Health(200, "a", ["starting"]), Answers(incarnation="a")),
        (Health(404, None), Answers()),
        (Health(503, None), Fails(why="its health is 503")),
        (Health(503, "a"), Fails(why="its health is 503")),
        (Health(404, "a"), Fails(why="its health is 404")),
    ],
)
def test_an_engine_without_health_is_well_if_it_is_there(health: Health, says: Heard) -> None:
    assert heard(health) == says
