"""The bootstrap protocol over HTTP for a native instance, from a topology: exact shapes, every error a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pdcore.http_server import answering, listen, port_of
from pdcore.registry.desired import Fence
from pdcore.registry.facade.app import MAX_BODY_BYTES, create_app
from pdcore.registry.facade.bootstrap import Bootstrap
from pdcore.registry.facade.own import OwnRanks
from pdcore.registry.memory import MemoryStore
from pdcore.registry.rooms.opening import open_reader, open_writer
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology
from tests.support.fleet import complete, instance_record, topology_of

pytestmark = pytest.mark.integration

RECORD = instance_record("prefill", dp_size=2, tp_size=2, extra={"max_prefill_tokens": 512})
OWN: dict[str, Any] = {
    **{"attn_tp_size": 2, "attn_tp_rank": 1, "attn_cp_size": 1, "attn_cp_rank": 0},
    **{"attn_dp_size": 2, "attn_dp_rank": 1, "rank_ip": "127.0.0.1", "rank_port": 40001},
    **{"block_size": 16, "kv_cache_dtype": "float32"},
}


class Served:
    """A native instance's bootstrap port. ``topology`` and ``alive`` are what the test says they are."""

    def __init__(self, port: int) -> None:
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/bootstrap", verify=False)
        self.topology = topology_of(complete("p0", RECORD))
        self.alive = True

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        answer = await self.client.request(method, path, json=body)
        return answer.status_code, answer.json()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    listener = listen("127.0.0.1", 0, "bootstrap_port")
    some = Served(port_of(listener))

    def view() -> Topology:
        return some.topology

    keyspace, store = Keyspace(cluster="c"), MemoryStore(alive_s=0.1)
    fence = Fence(keyspace=keyspace, instance_id="p0", incarnation="inc-1")
    await store.commit((), (Put(fence.claim_key, b"inc-1"),))
    ranks = OwnRanks(instance_id="p0", incarnation="inc-1", view=view, alive=lambda: some.alive)
    async with (
        some.client,
        open_writer(fence, store, None, lives_s=60) as writer,
        open_reader(keyspace, store, None) as reader,
        answering(create_app(Bootstrap("p0", "inc-1", ranks, view, writer, reader)), listener),
    ):
        yield some


async def test_the_route_is_the_keyspaces(served: Served) -> None:
    status, table = await served.call("GET", "/route")
    assert status == 200
    ranks = {f"{dp},0,{tp}": {"rank_ip": "127.0.0.1", "rank_port": 40001} for dp in (0, 1) for tp in (0, 1)}
    assert table == {
        "attn_tp_size": 2,
        "attn_cp_size": 1,
        "dp_size": 2,
        "pp_size": 1,
        "block_size": 16,
        "block_sizes": [16],
        "kv_cache_dtype": "float32",
        "max_prefill_tokens": 512,
        "ranks": ranks,
    }
    assert await served.call("GET", "/health") == (200, {"status": "ok", "ready": True})


async def test_no_route_before_every_rank_stands_once(served: Served) -> None:
    entries = complete("p0", RECORD)
    del entries["ranks/p0/1.0.1"]
    other = complete("p0", RECORD._replace(incarnation="inc-2"))
    for topology in (
        Topology.empty(),
        topology_of(entries),
        topology_of(complete("p0", RECORD._replace(state="starting"))),
        topology_of(other),
    ):
        served.topology = topology
        assert await served.call("GET", "/route") == (503, {"detail": "bootstrap ranks not ready"})
        assert await served.call("GET", "/health") == (200, {"status": "ok", "ready": False})


async def test_a_route_outlives_its_keys_but_not_its_ranks(served: Served) -> None:
    table = await served.call("GET", "/route")
    served.topology = Topology.empty()
    assert await served.call("GET", "/route") == table
    served.alive = False
    assert (await served.call("GET", "/route"))[0] == 503


async def test_an_instance_that_drains_is_still_routed_to(served: Served) -> None:
    served.topology = topology_of(complete("p0", RECORD._replace(state="draining")))
    assert (await served.call("GET", "/route"))[0] == 200


async def test_an_own_rank_may_be_said_again_and_nobody_else_may_be_one(served: Served) -> None:
    assert await served.call("PUT", "/register_rank", OWN) == (200, {"status": "ok"})
    for change, field in (
        ({"rank_port": 40002}, "rank_ip"),
        ({"rank_ip": "127.0.0.2"}, "rank_ip"),
        ({"attn_dp_size": 4}, "attn_dp_size"),
        ({"block_size": 32}, "block_sizes"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype"),
        ({"max_prefill_tokens": 513}, "max_prefill_tokens"),
    ):
        status, body = await served.call("PUT", "/register_rank", OWN | change)
        assert (status, body["field"]) == (409, field)
        assert body["detail"]
    served.topology = Topology.empty()
    assert (await served.call("PUT", "/register_rank", OWN))[0] == 503


async def test_rooms_are_found_as_soon_as_they_are_put(served: Served) -> None:
    assert await served.call("POST", "/query_dp_ranks", [5]) == (200, {"5": -1})
    for dp_rank in (1, 0):
        body = {"bootstrap_room": 5, "dp_rank": dp_rank}
        assert await served.call("POST", "/register_dp_rank", body) == (200, {"status": "ok"})
        assert await served.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [5, 6, 5]}) == (
            200,
            {"5": dp_rank, "6": -1},
        )


async def test_many_rooms_are_asked_for_in_one_call(served: Served) -> None:
    for room in range(1, 21):
        await served.call("POST", "/register_dp_rank", {"bootstrap_room": room, "dp_rank": room % 2})
    status, found = await served.call("POST", "/query_dp_ranks", list(range(1, 10_001)))
    assert (status, len(found), sum(rank >= 0 for rank in found.values())) == (200, 10_000, 20)
    status, body = await served.call("POST", "/query_dp_ranks", list(range(1, 10_002)))
    assert (status, body["field"]) == (400, "bootstrap_rooms")


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", "/register_rank", {}, "attn_tp_size"),
        ("PUT", "/register_rank", OWN | {"attn_tp_size": "2"}, "attn_tp_size"),
        ("PUT", "/register_rank", OWN | {"attn_tp_size": 10**9}, "attn_tp_size"),
        ("PUT", "/register_rank", OWN | {"rank_ip": "0.0.0.0"}, "rank_ip"),
        ("PUT", "/register_rank", [], None),
        ("POST", "/register_dp_rank", {"bootstrap_room": 5}, "dp_rank"),
        ("POST", "/register_dp_rank", {"bootstrap_room": 5, "dp_rank": 2}, "dp_rank"),
        ("POST", "/register_dp_rank", {"bootstrap_room": 0, "dp_rank": 0}, "bootstrap_room"),
        ("POST", "/query_dp_ranks", {}, "bootstrap_rooms"),
        ("POST", "/query_dp_ranks", ["5"], "bootstrap_rooms"),
    ],
)
async def test_a_wrong_call_is_400_with_its_field(
    served: Served, method: str, path: str, body: object, field: str | None
) -> None:
    status, answer = await served.call(method, path, body)
    assert (status, answer.get("field")) == (400, field)
    assert answer["detail"]


async def test_no_body_is_too_long_to_be_refused(served: Served) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(2 + MAX_BODY_BYTES // 65536):
            yield b" " * 65536

    answer = await served.client.post("/query_dp_ranks", content=endless())
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in answer.json()["detail"]
    for raw in (b"{", b"\xff\xfe", b"[" * 1000):
        assert (await served.client.put("/register_rank", content=raw)).status_code == 400


async def test_what_is_not_in_the_protocol_is_refused(served: Served) -> None:
    assert await served.call("GET", "/nothing") == (404, {"detail": "Not Found"})
    status, body = await served.call("POST", "/route", {})
    assert (status, list(body)) == (405, ["detail"])
