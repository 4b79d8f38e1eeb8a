"""Decode first: it is told where to call, and prefill gets what it called with."""

from __future__ import annotations

import json

import pytest

from pdcore.router.protocols.ascend_layerwise import AscendLayerwise
from pdcore.router.protocols.unreadable import Unreadable
from tests.router.conformance.strict import not_a_prefill
from tests.router.protocols.attempts import attempt, body_of, legs_of

pytestmark = pytest.mark.unit

CLIENTS = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9, "stream": True}
CALL = json.dumps(
    {
        "request_id": "chatcmpl-me-0000000000001234",
        "do_remote_decode": True,
        "remote_block_ids": [[1]],
        "x": 1.50,
    }
).encode()
URL = "http://127.0.0.1:1/metaserver/t"


def test_decode_is_told_the_address_of_its_own_attempt() -> None:
    plan = AscendLayerwise().plan(attempt(CLIENTS, "chat", callback_url=URL))
    told = legs_of(plan)["decode"].post
    params = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": URL}
    assert body_of(told) == {**CLIENTS, "model": "tiny", "kv_transfer_params": params}
    assert AscendLayerwise().calls_back


def test_prefill_gets_what_decode_called_with_to_the_byte_and_the_same_id() -> None:
    plan = AscendLayerwise().plan(attempt(CLIENTS, "chat", callback_url=URL))
    second = plan.second
    assert second is not None
    assert (second.leg, second.after, second.instance.instance_id) == ("prefill", "callback", "p")
    post = second.make(CALL)
    assert CALL in post.body
    assert not_a_prefill(body_of(post)) == []
    assert post.headers["x-request-id"] == plan.legs[0].post.headers["x-request-id"]


@pytest.mark.parametrize("words", [b"", b"null", b"{}", b"[]", b"5", b"{"])
def test_a_call_that_says_nothing_is_none(words: bytes) -> None:
    second = AscendLayerwise().plan(attempt(CLIENTS, "chat", callback_url=URL)).second
    assert second is not None
    with pytest.raises(Unreadable):
        second.make(words)
