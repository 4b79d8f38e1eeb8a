"""Rooms in both legs: plain for one answer, lists of equal length for several."""

from __future__ import annotations

import pytest

from pdcore.router.protocols.bootstrap import Bootstrap
from tests.router.protocols.attempts import attempt, body_of, legs_of

pytestmark = pytest.mark.unit


def test_one_answer_has_plain_values() -> None:
    legs = legs_of(Bootstrap().plan(attempt({"prompt": ["hi"]}, dp_rank=0)))
    assert legs["prefill"].post.body == legs["decode"].post.body
    body = body_of(legs["decode"].post)
    assert (body["bootstrap_room"], body["bootstrap_host"], body["bootstrap_port"]) == (
        *(0x1234, "127.0.0.1", 18800),
    )


def test_several_answers_have_a_room_each_on_both_legs() -> None:
    rooms = (11, 12, 13, 14)
    legs = legs_of(Bootstrap().plan(attempt({"prompt": ["a", "b"], "n": 2}, rooms=rooms)))
    assert legs["prefill"].post.body == legs["decode"].post.body
    body = body_of(legs["prefill"].post)
    assert body["bootstrap_room"] == list(rooms)
    assert (body["bootstrap_host"], body["bootstrap_port"]) == (["127.0.0.1"] * 4, [18800] * 4)
