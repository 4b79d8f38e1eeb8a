"""A whole cluster goes on serving while the store is away so long that every lease is gone when it comes back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpx
import msgspec
import pytest

from pdcore.topology.keys import Keyspace
from tests.cluster import figures
from tests.cluster.stage import FRESH_S
from tests.support.cluster import Cluster
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.cluster]

RATE: Final = 40
WARM_S: Final = 3.0
PAUSE_S: Final = 15.0
AFTERWARDS_S: Final = 10.0
REQUEST: Final = {"model": "tiny", "prompt": "go on", "max_tokens": 1, "temperature": 0}


@dataclass(slots=True)
class OpenLoop:
    """Sends ``RATE`` requests a second, however long the answers take."""

    url: str
    answers: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    async def run(self, seconds: float) -> None:
        limits = httpx.Limits(keepalive_expiry=FRESH_S)
        async with httpx.AsyncClient(timeout=30, limits=limits, trust_env=False) as client:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number in range(round(seconds * RATE)):
                    await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                    group.create_task(self._ask(client))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        began = time.monotonic()
        try:
            response = await client.post(f"{self.url}/v1/completions", json=REQUEST)
        except httpx.HTTPError as error:
            self.answers[repr(error)] += 1
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        text = "" if response.status_code == 200 else str(response.json()["error"]["message"])[:200]
        self.answers[f"{response.status_code} {text}".strip()] += 1


async def test_no_request_fails_through_a_pause_that_costs_every_lease(cluster: Cluster) -> None:
    prefill, decode, router = await asyncio.to_thread(cluster.pair)
    incarnations = {prefill.incarnation, decode.incarnation}
    before = leases(cluster)
    load = OpenLoop(router.url)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(WARM_S + PAUSE_S + AFTERWARDS_S))
        await asyncio.sleep(WARM_S)
        cluster.etcd.pause()
        await asyncio.sleep(PAUSE_S)
        cluster.etcd.resume()
    failed = load.answers.total() - load.answers["200"]
    figures.show(
        f"1P1D, {RATE}/s, store paused {PAUSE_S:.0f} s",
        requests=load.answers.total(),
        failed=failed,
        **{"slowest s": load.slowest_s},
    )
    assert not failed, load.answers
    assert not before & leases(cluster), "every lease was lost"
    assert {prefill.incarnation, decode.incarnation} == incarnations, "no process ended"
    for instance_id in (prefill.instance_id, decode.instance_id):
        eventually_now(partial(cluster.instance_keys, instance_id), 3, "registered again")


def leases(cluster: Cluster) -> set[int]:
    """What the instances' and routers' records hang on."""
    prefix = Keyspace(cluster=cluster.cluster).view
    listed = msgspec.json.decode(cluster.etcd.etcdctl("get", "--prefix", prefix, "--write-out=json"))
    return {entry["lease"] for entry in listed["kvs"] if "lease" in entry}
