"""Prefill first, then decode with what prefill answered."""

from __future__ import annotations

import json

import pytest

from pdcore.router.protocols.base import Carried
from pdcore.router.protocols.nixl import ASK, Nixl
from pdcore.router.protocols.unreadable import Unreadable
from tests.router.conformance.strict import not_a_prefill
from tests.router.protocols.attempts import attempt, body_of, instance, legs_of

pytestmark = pytest.mark.unit

CLIENTS = {
    "prompt": "hi",
    "max_tokens": 9,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": ["x"],
}
PARAMS = {"remote_engine_id": "e-1", "remote_block_ids": [[1, 2]], "remote_port": 5600, "new": {"1": 1.50}}
ANSWER = json.dumps({"id": "cmpl-1", "choices": [], "kv_transfer_params": PARAMS}).encode()


def test_prefill_is_asked_to_keep_the_kv_of_one_token() -> None:
    plan = Nixl().plan(attempt(CLIENTS))
    (leg,) = plan.legs
    assert (leg.leg, leg.post.url) == ("prefill", "http://p:8000/v1/completions")
    body = body_of(leg.post)
    assert not_a_prefill(body) == []
    assert body["kv_transfer_params"] == ASK
    assert body["prompt"] == "hi"
    assert leg.post.headers["accept"] == "application/json"


def test_decode_gets_the_clients_body_and_what_prefill_answered_to_the_byte() -> None:
    second = Nixl().plan(attempt(CLIENTS)).second
    assert second is not None
    assert (second.leg, second.after, second.instance.instance_id) == ("decode", "answer", "d")
    post = second.make(ANSWER)
    assert body_of(post) == {**CLIENTS, "model": "tiny", "kv_transfer_params": PARAMS}
    assert json.dumps(PARAMS).encode() in post.body
    assert post.headers["accept"] == "text/event-stream"


def test_both_legs_have_one_id_that_no_other_attempt_has() -> None:
    plan = Nixl().plan(attempt(CLIENTS))
    assert plan.second is not None
    ids = {leg.headers["x-request-id"] for leg in (plan.legs[0].post, plan.second.make(ANSWER))}
    assert ids == {"me-0000000000001234"}
    other = Nixl().plan(attempt(CLIENTS, rooms=(5,)))
    assert other.legs[0].post.headers["x-request-id"] not in ids


def test_only_a_rank_among_several_is_named() -> None:
    several = instance("prefill", dp_size=4)
    named = Nixl().plan(attempt(CLIENTS, prefill=several, dp_rank=2)).legs[0].post
    assert named.headers["x-data-parallel-rank"] == "2"
    for plan in (
        Nixl().plan(attempt(CLIENTS, prefill=several)),
        Nixl().plan(attempt(CLIENTS, dp_rank=0)),
    ):
        assert "x-data-parallel-rank" not in plan.legs[0].post.headers


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b'{"kv_transfer_params": null}',
        b'{"kv_transfer_params": {}}',
        b'{"kv_transfer_params": "x"}',
        b'{"kv_transfer_params": [1]}',
        b"[" * 100_000,
    ],
)
def test_an_answer_without_parameters_is_no_hand_off(document: bytes) -> None:
    second = Nixl().plan(attempt(CLIENTS)).second
    assert second is not None
    with pytest.raises(Unreadable):
        second.make(document)


def test_a_later_decode_alone_takes_over_under_the_same_id() -> None:
    carried = Carried(prefill=("p", "i1"), room=0x99, words=ANSWER)
    plan = Nixl().plan(attempt(CLIENTS, carried=carried))
    assert plan.second is None
    alone = legs_of(plan)["decode"].post
    assert body_of(alone)["kv_transfer_params"] == PARAMS
    assert alone.headers["x-request-id"] == "me-0000000000000099"
