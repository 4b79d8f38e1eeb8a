"""Engines that freeze with requests in them, and a router that starts while the store is away; on real engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import figures
from tests.support.cluster import Cluster, Engine, Router
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.cluster]

SHORT = {"model": "tiny", "prompt": "short", "max_tokens": 8, "temperature": 0}
LONG = {**SHORT, "max_tokens": 1500, "ignore_eos": True}
FROZEN_AFTER_S = "5"
FROZEN_S = 9.0


@pytest.fixture
def client() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def serves(router: Router) -> bool:
    return router.post("/v1/completions", SHORT).status_code == 200


def test_a_frozen_leader_fails_its_requests_soon_and_serves_again_when_it_wakes(
    cluster: Cluster, client: ThreadPoolExecutor
) -> None:
    prefill, decode = cluster.engine("prefill"), cluster.engine("decode")
    router = cluster.router("--frozen-after-s", FROZEN_AFTER_S)
    for process in (prefill, decode, router):
        process.wait_ready()
    assert serves(router)
    shown: dict[str, float] = {}
    for name, engine in (("prefill", prefill), ("decode", decode)):
        shown[f"{name} s"] = _freeze(engine, decode, router, client)
        eventually_now(partial(serves, router), 10, "serving again")
    figures.show("leader SIGSTOPped with a request in it: failed after", **shown)
    for process in (prefill, decode, router):
        eventually_now(lambda process=process: not process.leftovers(), 10, "nothing is held")  # type: ignore[misc]


def _freeze(engine: Engine, decode: Engine, router: Router, client: ThreadPoolExecutor) -> float:
    """How long a request that needs ``engine`` lasts once that is frozen."""
    running = engine is decode
    if running:
        request = client.submit(router.post, "/v1/completions", LONG)
        eventually_now(lambda: decode.gauge("pdcore_engine_running"), 10, "a running request")
    engine.pause()
    frozen = time.monotonic()
    if not running:
        request = client.submit(router.post, "/v1/completions", SHORT)
    response = request.result(timeout=30)
    lasted = time.monotonic() - frozen
    assert (response.status_code, response.json()["error"]["code"]) == (
        502,
        "decode_failed" if running else "prefill_failed",
    )
    assert lasted < FROZEN_S
    assert router.post("/v1/completions", SHORT).status_code == 503
    engine.resume()
    return lasted


def test_a_router_serves_from_its_cached_view_while_the_store_is_away(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "view.json"
    cluster.engine("prefill").wait_ready()
    cluster.engine("decode").wait_ready()
    router = cluster.router("--view-cache", str(file)).wait_ready()
    assert serves(router)
    router.stop()
    cluster.etcd.pause()
    began = time.monotonic()
    router.start()
    router.wait_ready()
    figures.show("router started while etcd was stopped", **{"ready after s": time.monotonic() - began})
    for _ in range(5):
        assert serves(router)
    assert router.gauge("pdcore_router_suspects") == 2
    cluster.etcd.resume()
    eventually_now(
        lambda: not router.gauge("pdcore_router_suspects"), 20, "the list replaced the cached view"
    )
    assert serves(router)
