"""An engine dies or stops while it holds a request: the client hears of it soon, and nothing stays behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.cluster import Cluster
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SOON_S = 2.0
LONG = {
    "model": "tiny",
    "prompt": "tell me everything",
    "max_tokens": 1500,
    "temperature": 0,
    "ignore_eos": True,
}
SHORT = {"model": "tiny", "prompt": "short", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def client() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_prefill_killed_before_it_answers(cluster: Cluster, client: ThreadPoolExecutor) -> None:
    prefill, decode, router = cluster.pair()
    prefill.pause()
    request = client.submit(router.post, "/v1/completions", SHORT)
    eventually_now(
        lambda: decode.gauge("pdcore_engine_rooms") or decode.gauge("pdcore_engine_transferring"),
        5,
        "an open room",
    )
    killed = time.monotonic()
    prefill.kill()
    response = request.result(timeout=10)
    assert time.monotonic() - killed < SOON_S
    assert response.status_code in {502, 503}, response.text
    assert response.json()["error"]["code"] in {"prefill_failed", "backend_unavailable"}
    eventually_now(lambda: not decode.leftovers(), SOON_S, "decode's blocks and slots free")
    eventually_now(lambda: not router.leftovers(), SOON_S, "the router's counters free")


def test_decode_killed_while_it_generates(cluster: Cluster, client: ThreadPoolExecutor) -> None:
    prefill, decode, router = cluster.pair()
    request = client.submit(router.post, "/v1/completions", LONG)
    eventually_now(lambda: decode.gauge("pdcore_engine_running"), 10, "a running request")
    killed = time.monotonic()
    decode.kill()
    response = request.result(timeout=10)
    assert time.monotonic() - killed < SOON_S
    assert response.status_code in {502, 503}, response.text
    assert response.json()["error"]["code"] in {"decode_failed", "backend_unavailable"}
    eventually_now(lambda: not prefill.leftovers(), SOON_S, "prefill's blocks and rooms free")
    eventually_now(lambda: not router.leftovers(), SOON_S, "the router's counters free")


def test_decode_killed_in_the_middle_of_a_stream(cluster: Cluster) -> None:
    _, decode, router = cluster.pair()
    events: list[str] = []
    with httpx.stream(
        "POST", f"{router.url}/v1/completions", json={**LONG, "stream": True}, timeout=20
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line)
            if len(events) == 3:
                decode.kill()
    assert "[DONE]" not in events[-1]
    assert '"error"' in events[-1]
    assert '"decode_failed"' in events[-1]


def test_a_rank_killed_alone_ends_its_instance(cluster: Cluster) -> None:
    engine = cluster.engine("unified").wait_ready()
    (rank,) = engine.ranks()
    rank.kill()
    assert engine.wait(10) == 70
    eventually_now(lambda: not cluster.instance_keys(engine.instance_id), SOON_S, "withdrawn")


@pytest.mark.parametrize("when", ["before the handshake is read", "while the prompt is computed"])
def test_a_stopped_prefill_costs_its_request_only_and_memory_comes_back(
    cluster: Cluster, client: ThreadPoolExecutor, when: str
) -> None:
    stopped, decode, _ = cluster.pair()
    other = cluster.engine("prefill").wait_ready()
    router = cluster.router("--request-timeout-s", "3").wait_ready()
    to_stopped, to_other = cluster.bootstrap(stopped), cluster.bootstrap(other)
    expected = [router.post("/v1/completions", {**SHORT, **where}).json() for where in (to_stopped, to_other)]
    (rank,) = stopped.ranks()
    if when == "before the handshake is read":
        rank.suspend()
        late = client.submit(router.post, "/v1/completions", {**SHORT, **to_stopped})
    else:
        slow = {"model": "tiny", "prompt": "x" * 1900, "max_tokens": 8, "temperature": 0}
        late = client.submit(router.post, "/v1/completions", {**slow, **to_stopped})
        eventually_now(lambda: decode.gauge("pdcore_engine_transferring"), 5, "a hand-off under way")
        rank.suspend()
    assert late.result(timeout=10).status_code == 504
    assert decode.gauge("pdcore_engine_kv_blocks_quarantined") > 0
    for _ in range(5):
        answer = router.post("/v1/completions", {**SHORT, **to_other})
        assert answer.json()["choices"] == expected[1]["choices"]
    rank.resume()
    eventually_now(lambda: not decode.leftovers(), 10, "quarantine released by the drained ack")
    again = router.post("/v1/completions", {**SHORT, **to_stopped})
    assert again.json()["choices"] == expected[0]["choices"]
    eventually_now(lambda: not stopped.leftovers(), 5, "the stopped prefill's own blocks free")


def test_a_stopped_prefill_that_dies_gives_its_memory_back(
    cluster: Cluster, client: ThreadPoolExecutor
) -> None:
    stopped, decode, _ = cluster.pair()
    router = cluster.router("--request-timeout-s", "3").wait_ready()
    assert router.post("/v1/completions", SHORT).status_code == 200
    (rank,) = stopped.ranks()
    rank.suspend()
    assert router.post("/v1/completions", SHORT).status_code == 504
    assert decode.gauge("pdcore_engine_kv_blocks_quarantined") > 0
    rank.kill()
    eventually_now(lambda: not decode.leftovers(), SOON_S, "quarantine released by the fence")
