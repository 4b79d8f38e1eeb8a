"""Both legs at once, joined by a transfer id, once prefill's engine ids are known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.router.pick import Pick
from pdcore.router.protocols.base import Question
from pdcore.router.protocols.mooncake import EngineIds, Mooncake
from pdcore.router.protocols.unreadable import Unreadable
from pdcore.topology.instance import Instance
from tests.router.conformance.strict import not_a_prefill
from tests.router.protocols.attempts import attempt, body_of, instance, legs_of

pytestmark = pytest.mark.unit

CLIENTS = {"prompt": "hi", "max_tokens": 9}
ONE = EngineIds({0: "e-0"})
QUERY = b'{"0":{"engine_id":"e-0","worker_addr":{"0":{"0":"tcp://h:1"}}},"1":{"engine_id":"e-1","pp_size":1}}'


def question(prefill: Instance) -> Question:
    return Mooncake().question(
        Pick(prefill=prefill, decode=instance("decode"), prefill_dp_rank=None, revision=1)
    )


def test_both_legs_are_joined_by_one_transfer_id() -> None:
    plan = Mooncake().plan(attempt(CLIENTS, learned=ONE))
    assert plan.second is None
    give, take = (legs_of(plan)[leg].post for leg in ("prefill", "decode"))
    given_, taken = body_of(give)["kv_transfer_params"], body_of(take)["kv_transfer_params"]
    assert given_ == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-0000000000001234",
    }
    assert taken == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": "http://127.0.0.1:18800",
        "remote_engine_id": "e-0",
        "transfer_id": given_["transfer_id"],
    }
    assert not_a_prefill(body_of(give)) == []
    assert body_of(take) == {**CLIENTS, "model": "tiny", "kv_transfer_params": taken}
    assert give.headers["x-request-id"] == take.headers["x-request-id"]


@given(st.integers(1, 2**63 - 1))
def test_decode_is_told_the_engine_of_the_rank_that_prefill_was_sent_to(room: int) -> None:
    known = EngineIds({0: "e-0", 1: "e-1", 2: "e-2"})
    registered_as_one = instance("prefill", dp_size=1)
    plan = Mooncake().plan(attempt(CLIENTS, prefill=registered_as_one, learned=known, rooms=(room,)))
    legs = legs_of(plan)
    rank = int(legs["prefill"].post.headers["x-data-parallel-rank"])
    told = body_of(legs["decode"].post)["kv_transfer_params"]["remote_engine_id"]
    assert told == f"e-{rank}"


def test_a_rank_that_the_client_asked_for_is_kept() -> None:
    known, three = EngineIds({0: "e-0", 1: "e-1", 2: "e-2"}), instance("prefill", dp_size=3)
    plan = Mooncake().plan(attempt(CLIENTS, prefill=three, learned=known, dp_rank=1))
    assert legs_of(plan)["prefill"].post.headers["x-data-parallel-rank"] == "1"
    with pytest.raises(Unreadable, match=r"\[0\], not 1"):
        Mooncake().plan(attempt(CLIENTS, prefill=three, learned=ONE, dp_rank=1))


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({"bootstrap_host": "10.0.0.1", "bootstrap_port": 9000}, "http://10.0.0.1:9000/query"),
        ({"bootstrap_host": "fd00::1", "bootstrap_port": 9000}, "http://[fd00::1]:9000/query"),
        ({"bootstrap_host": None, "bootstrap_port": None}, "http://p:8998/query"),
    ],
)
def test_the_question_goes_to_the_bootstrap_server_and_holds_for_the_incarnation(
    changes: dict[str, Any], url: str
) -> None:
    asked = question(instance("prefill", **changes))
    assert (asked.url, asked.key) == (url, ("p", "i1"))


def test_the_answer_reads_as_engine_ids_by_rank() -> None:
    assert question(instance("prefill")).read(QUERY) == EngineIds({0: "e-0", 1: "e-1"})


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"x":{"engine_id":"e"}}',
        b'{"0":{}}',
        b'{"0":{"engine_id":5}}',
        b"[" * 99999,
    ],
)
def test_any_other_answer_is_none(document: bytes) -> None:
    with pytest.raises(Unreadable):
        question(instance("prefill")).read(document)
