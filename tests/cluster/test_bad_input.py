"""What a client gets wrong is said in one sentence with the right status, and touches no engine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.cluster.conftest import Fleet
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.cluster]

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}


def seen_by_engines(fleet: Fleet) -> float:
    return sum(engine.gauge("pdcore_engine_requests_total") for engine in (fleet.prefill, fleet.decode))


@pytest.mark.parametrize(
    ("change", "status", "names"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [""]}, 400, "prompt"),
        ({"prompt": 7}, 400, "prompt"),
        ({"max_tokens": "4"}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"stream": "yes"}, 400, "stream"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"model": 5}, 400, "model"),
        ({"bootstrap_room": 0}, 400, "bootstrap_room"),
        ({"bootstrap_room": -1}, 400, "bootstrap_room"),
        ({"bootstrap_room": 2**63}, 400, "bootstrap_room"),
        ({"bootstrap_room": "7"}, 400, "bootstrap_room"),
        ({"bootstrap_room": True}, 400, "bootstrap_room"),
        ({"bootstrap_host": "127.0.0.1", "bootstrap_port": 9}, 400, "bootstrap"),
        ({"disagg_prefill_dp_rank": 3}, 400, "disagg_prefill_dp_rank"),
    ],
)
def test_a_wrong_field_is_named_before_any_leg_is_touched(
    fleet: Fleet, change: dict[str, Any], status: int, names: str
) -> None:
    before = seen_by_engines(fleet)
    response = fleet.router.post("/v1/completions", {**GOOD, **change})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert names in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert seen_by_engines(fleet) == before


@pytest.mark.parametrize(
    ("content", "status"), [(b"{", 400), (b"[]", 400), (b"\xff", 400), (b" " * (9 << 20), 413)]
)
def test_a_body_that_is_no_request_is_refused(fleet: Fleet, content: bytes, status: int) -> None:
    before = seen_by_engines(fleet)
    response = httpx.post(f"{fleet.router.url}/v1/completions", content=content, trust_env=False)
    assert response.status_code == status
    assert seen_by_engines(fleet) == before


def test_an_over_long_prompt_is_the_engines_400_and_leaves_nothing(fleet: Fleet) -> None:
    response = fleet.router.post("/v1/completions", {**GOOD, "prompt": "word " * 3000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "2048" in error["message"]
    eventually_now(lambda: not fleet.leftovers(), 2, "blocks, slots and rooms free")
    assert fleet.router.post("/v1/completions", GOOD).status_code == 200


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_asked_directly_without_bootstrap_fields_names_them(fleet: Fleet, role: str) -> None:
    engine = fleet.prefill if role == "prefill" else fleet.decode
    response = httpx.post(f"{engine.url}/v1/completions", json=GOOD, trust_env=False)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "bootstrap_room"
