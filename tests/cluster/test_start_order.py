"""Any start order ends in an answer: everybody learns of everybody by watching, whenever they come."""

from __future__ import annotations

from itertools import permutations

import httpx
import pytest

from tests.support.cluster import START_S, Cluster, Router
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.cluster

REQUEST = {"model": "tiny", "prompt": "any order", "max_tokens": 4, "temperature": 0}


def start(cluster: Cluster, what: str) -> None:
    match what:
        case "etcd":
            cluster.etcd.start()
        case "router":
            cluster.router()
        case role:
            cluster.engine(role)


def answer(router: Router) -> str | None:
    """The text once the request is served; None while it is refused as unavailable."""
    try:
        response = router.post("/v1/completions", REQUEST)
    except httpx.TransportError:
        return None
    assert response.status_code in {200, 503}, response.text
    return str(response.json()["choices"][0]["text"]) if response.status_code == 200 else None


@pytest.mark.parametrize("order", list(permutations(("etcd", "router", "decode", "prefill"))), ids="-".join)
def test_the_same_request_is_served_in_the_end(bare_cluster: Cluster, order: tuple[str, ...]) -> None:
    for what in order:
        start(bare_cluster, what)
    router = bare_cluster.only_router()
    assert eventually_now(lambda: answer(router), START_S, "an answer")


def test_a_router_without_a_store_says_so_and_heals(bare_cluster: Cluster) -> None:
    router = bare_cluster.router()
    refused = eventually_now(lambda: router.get("/ready"), START_S)
    assert refused is not None
    assert refused.status_code == 503
    assert "store" in refused.text
    completion = router.post("/v1/completions", REQUEST)
    assert completion.status_code == 503
    assert completion.json()["error"]["code"] == "backend_unavailable"
    bare_cluster.etcd.start()
    bare_cluster.engine("unified")
    router.wait_ready()
    assert answer(router)
