"""An engine dies or stops while it holds a request: the client hears of it soon, and nothing stays behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.conftest import Fleet
from tests.support.cluster import Engine, Router
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.cluster]

SOON_S = 2.0
SHORT = {"model": "tiny", "prompt": "short", "max_tokens": 8, "temperature": 0}
LONG = {**SHORT, "prompt": "tell me everything", "max_tokens": 1500, "ignore_eos": True}
SLOW_PREFILL = {**SHORT, "prompt": "x" * 1900}


@pytest.fixture
def client() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def choices(router: Router, body: dict[str, Any]) -> object:
    response = router.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def is_at_rest(process: Engine | Router) -> bool:
    return not process.leftovers()


def rank_of(engine: Engine) -> psutil.Process:
    (rank,) = engine.ranks()
    return rank


def assert_ends_soon(request: Future[httpx.Response], since: float, code: str) -> None:
    response = request.result(timeout=10)
    assert time.monotonic() - since < SOON_S
    assert response.status_code in {502, 503}, response.text
    assert response.json()["error"]["code"] in {code, "backend_unavailable"}


def test_prefill_killed_while_decode_waits_for_it(fleet: Fleet, client: ThreadPoolExecutor) -> None:
    pinned = fleet.cluster.bootstrap(fleet.prefill)
    choices(fleet.router, {**SHORT, **pinned})
    rank_of(fleet.prefill).suspend()
    request = client.submit(fleet.router.post, "/v1/completions", {**SHORT, **pinned})
    eventually_now(lambda: fleet.decode.gauge("pdcore_engine_rooms"), 5, "an open room")
    killed = time.monotonic()
    fleet.prefill.kill()
    assert_ends_soon(request, killed, "prefill_failed")
    eventually_now(lambda: not fleet.decode.leftovers(), SOON_S, "decode's blocks and slots free")
    eventually_now(lambda: not fleet.router.leftovers(), SOON_S, "the router's counters free")


def test_decode_killed_while_it_generates(fleet: Fleet, client: ThreadPoolExecutor) -> None:
    request = client.submit(fleet.router.post, "/v1/completions", LONG)
    eventually_now(lambda: fleet.decode.gauge("pdcore_engine_running"), 10, "a running request")
    killed = time.monotonic()
    fleet.decode.kill()
    assert_ends_soon(request, killed, "decode_failed")
    for process in (fleet.prefill, fleet.other, fleet.router):
        eventually_now(partial(is_at_rest, process), SOON_S, "blocks, rooms and counters free")


def test_decode_killed_in_the_middle_of_a_stream(fleet: Fleet) -> None:
    events: list[str] = []
    url = f"{fleet.router.url}/v1/completions"
    with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=20, trust_env=False) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line)
            if len(events) == 3:
                fleet.decode.kill()
    assert '"error"' in events[-1]
    assert '"decode_failed"' in events[-1]
    assert not any('"finish_reason":"' in event for event in events)


def quarantines_soon(engine: Engine) -> bool:
    """Whether ``engine`` sets blocks aside; it may hear of the request's end a moment after the client does."""
    try:
        eventually_now(lambda: engine.gauge("pdcore_engine_kv_blocks_quarantined"), SOON_S)
    except AssertionError:
        return False
    return True


def stop_before_the_handshake(fleet: Fleet, client: ThreadPoolExecutor, pinned: dict[str, object]) -> None:
    rank_of(fleet.prefill).suspend()
    late = client.submit(fleet.hasty.post, "/v1/completions", {**SHORT, **pinned})
    assert late.result(timeout=10).status_code == 504
    assert quarantines_soon(fleet.decode)


def stop_while_computing(fleet: Fleet, client: ThreadPoolExecutor, pinned: dict[str, object]) -> None:
    """Stop the rank in the middle of a hand-off: again when it was quicker, and its KV had already arrived."""
    rank = rank_of(fleet.prefill)
    for _ in range(10):
        late = client.submit(fleet.hasty.post, "/v1/completions", {**SLOW_PREFILL, **pinned})
        eventually_now(lambda: fleet.decode.gauge("pdcore_engine_transfer"), 5, "a hand-off under way")
        rank.suspend()
        status = late.result(timeout=10).status_code
        if status == 504 and quarantines_soon(fleet.decode):
            return
        assert status in {200, 504}
        rank.resume()
        eventually_now(partial(is_at_rest, fleet.prefill), 5, "the hand-off that was quicker ended")
    raise AssertionError("the rank was never stopped within a hand-off")


@pytest.mark.parametrize(
    "stop", [stop_before_the_handshake, pytest.param(stop_while_computing, marks=pytest.mark.cluster)]
)
def test_a_stopped_prefill_costs_its_request_only_and_memory_comes_back(
    fleet: Fleet,
    client: ThreadPoolExecutor,
    stop: Callable[[Fleet, ThreadPoolExecutor, dict[str, object]], None],
) -> None:
    to_stopped, to_other = fleet.cluster.bootstrap(fleet.prefill), fleet.cluster.bootstrap(fleet.other)
    expected = choices(fleet.router, {**SHORT, **to_stopped})
    stop(fleet, client, to_stopped)
    for _ in range(5):
        assert choices(fleet.router, {**SHORT, **to_other}) == expected
    rank_of(fleet.prefill).resume()
    eventually_now(lambda: not fleet.decode.leftovers(), 10, "quarantine released by the drained ack")
    eventually_now(lambda: not fleet.prefill.leftovers(), 5, "the stopped prefill's own blocks free")
    assert choices(fleet.router, {**SHORT, **to_stopped}) == expected


def test_a_stopped_prefill_that_dies_gives_its_memory_back(fleet: Fleet) -> None:
    pinned = fleet.cluster.bootstrap(fleet.prefill)
    choices(fleet.router, {**SHORT, **pinned})
    rank = rank_of(fleet.prefill)
    rank.suspend()
    assert fleet.hasty.post("/v1/completions", {**SHORT, **pinned}).status_code == 504
    assert quarantines_soon(fleet.decode)
    rank.kill()
    eventually_now(lambda: not fleet.decode.leftovers(), SOON_S, "quarantine released by the fence")
    assert fleet.prefill.wait(10) == 70, "a rank's death ends its instance"
    eventually_now(lambda: not fleet.cluster.instance_keys(fleet.prefill.instance_id), SOON_S, "withdrawn")
