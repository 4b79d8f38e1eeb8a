"""A router without a store before engines that compute, as somebody types it; they listen to whoever has their token."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster, Engine, Router
from tests.support.eventually import eventually_now
from tests.support.processes import free_port
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.cluster

BODY = {"prompt": [3, 4, 5], "max_tokens": 4, "temperature": 0}
START_S = 180.0


def static_router(cluster: Cluster, prefill: Engine, decode: Engine, *flags: str) -> Router:
    """Started; it may not be ready yet."""
    port, bootstrap = free_port(), cluster.bootstrap(prefill)["bootstrap_port"]
    told = ("--prefill", f"{prefill.url},bootstrap={bootstrap}", "--decode", decode.url)
    arguments = [sys.executable, "-m", "pdcore.router", *told, "--port", str(port), *flags]
    return Router(arguments, cluster.directory / f"static-{port}.log", port)


def status(url: str, **headers: str) -> int:
    return httpx.post(
        f"{url}/v1/completions", json=BODY, headers=headers, timeout=20, trust_env=False
    ).status_code


def test_engines_serve_the_router_that_has_their_token_and_the_next_token_too(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    token, old = tmp_path / "token", tmp_path / "old"
    for file in (token, old):
        file.write_text("engines-0123456789")
    with Cluster(tmp_path, model) as cluster:
        cluster.etcd.start()
        known = ("--engine-token-file", str(token))
        engines = [cluster.engine(role, *known) for role in ("prefill", "decode")]
        prefill, decode = (engine.wait_ready(START_S) for engine in engines)
        with (
            static_router(cluster, prefill, decode, *known) as router,
            static_router(cluster, prefill, decode, "--engine-token-file", str(old)) as stranger,
        ):
            for one in (router, stranger):
                one.wait_ready(START_S)
                answer = one.post("/v1/completions", BODY)
                assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)
            assert {status(engine.url) for engine in engines} == {401}
            token.write_text("next-token-0123456789")
            eventually_now(lambda: status(stranger.url) == 403, 10, "the old one is not known any more")
            eventually_now(lambda: status(router.url) == 200, 10, "the new one is")
            eventually_now(lambda: not (router.leftovers() or prefill.leftovers()), 10, "nothing is left")
