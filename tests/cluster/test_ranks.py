"""Instances of several ranks under load: one rank dies, an instance comes back with other sizes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Event
from typing import Final

import httpx
import pytest

from tests.cluster import figures
from tests.support.cluster import Cluster, Engine, Router
from tests.support.eventually import eventually_now
from tests.support.processes import free_port

pytestmark = pytest.mark.cluster

START_S: Final = 120.0
SOON_S: Final = 2.0
CALLERS: Final = 6
BODY: Final[dict[str, object]] = {"model": "tiny", "prompt": "x" * 400, "max_tokens": 24, "temperature": 0}
ENDINGS: Final = {200, 502, 503}


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when it was sent, when it was answered, and how."""

    sent: float
    ended: float
    status: int


@dataclass(slots=True)
class Load:
    """Callers that ask again and again, until told to stop; each time something new, so that every prefill has a share."""

    router: Router
    body: dict[str, object]
    stop: Event = field(default_factory=Event)
    calls: list[Call] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def run(self) -> None:
        while not self.stop.is_set():
            sent = time.monotonic()
            body = {**self.body, "prompt": f"{next(self.numbers)} {self.body['prompt']}"}
            status = self.router.post("/v1/completions", body, timeout_s=30).status_code
            self.calls.append(Call(sent, time.monotonic(), status))
            self.stop.wait(0.01 if status == 200 else 0.1)


@contextmanager
def load(router: Router, body: dict[str, object]) -> Iterator[Load]:
    with ThreadPoolExecutor(CALLERS) as pool:
        some = Load(router, body)
        running: list[Future[None]] = [pool.submit(some.run) for _ in range(CALLERS)]
        try:
            yield some
        finally:
            some.stop.set()
            for one in running:
                one.result(60)


def withdrawn(cluster: Cluster, engine: Engine) -> bool:
    return not cluster.instance_keys(engine.instance_id)


@pytest.mark.parametrize("pinned", [False, True], ids=["another prefill is there", "pinned to it"])
def test_a_rank_of_two_that_dies_costs_its_requests_only_and_ends_its_instance(
    cluster: Cluster, pinned: bool
) -> None:
    stays = ("--bootstrap-port", str(free_port()))
    victim, other = cluster.engine("prefill", "--tp", "2", *stays), cluster.engine("prefill")
    decode, router = cluster.engine("decode"), cluster.router()
    for process in (victim, other, decode, router):
        process.wait_ready(START_S)
    body = {**BODY, **(cluster.bootstrap(victim) if pinned else {})}
    old = victim.incarnation
    with load(router, body) as asked:
        eventually_now(lambda: len([c for c in asked.calls if c.status == 200]) > 20, 30, "a load")
        eventually_now(lambda: victim.gauge("pdcore_engine_http_in_flight"), 10, "requests at the victim")
        ranks = victim.ranks()
        assert len(ranks) == 2
        killed = time.monotonic()
        ranks[1].kill()
        eventually_now(lambda: withdrawn(cluster, victim), SOON_S, "withdrawn")
        gone_s = time.monotonic() - killed
        assert victim.wait(20) == 70
        assert cluster.keyspace()[f"departures/{victim.instance_id}"]["reason"] == "died"
        assert not [rank for rank in ranks if rank.is_running()]
        victim.start()
        victim.wait_ready(START_S)
        assert victim.incarnation != old
        again = time.monotonic()
        eventually_now(
            lambda: [c for c in asked.calls if c.sent > again and c.status == 200], 20, "served again"
        )
    held = [call for call in asked.calls if call.sent <= killed <= call.ended]
    slowest_s = max(call.ended - killed for call in held)
    assert held
    assert {call.status for call in held} <= ENDINGS
    assert slowest_s < SOON_S
    if not pinned:  # whoever is pinned to an instance that is not there is told so
        assert {call.status for call in asked.calls} <= ENDINGS
    for engine in (victim, other, decode):
        eventually_now(lambda e=engine: not e.leftovers(), 20, f"{engine.url} at rest")  # type: ignore[misc]
    figures.show("a rank of a TP 2 prefill killed", slowest_answer_s=slowest_s, withdrawn_s=gone_s)


def refusal(engine: Engine, body: dict[str, object], **headers: str) -> tuple[int, str | None]:
    answer = httpx.post(
        f"{engine.url}/v1/completions", json=body, headers=headers, timeout=30, trust_env=False
    )
    return answer.status_code, answer.headers.get("x-pdcore-refused")


def test_legs_for_another_start_or_other_sizes_are_refused_before_any_work(cluster: Cluster) -> None:
    first, decode = cluster.engine("prefill", "--dp", "2"), cluster.engine("decode", "--dp", "2")
    first.wait_ready(START_S)
    old = first.incarnation
    first.kill()
    prefill = cluster.engine("prefill", port=first.port)
    prefill.wait_ready(START_S)
    decode.wait_ready(START_S)
    record = cluster.keyspace()[f"instances/{prefill.instance_id}"]
    assert (record["dp_size"], record["incarnation"] != old) == (1, True)
    leg = {**BODY, **cluster.bootstrap(prefill), "bootstrap_room": 77, "disagg_prefill_dp_rank": 1}
    expected = {"x-pdcore-prefill-incarnation": old, "x-pdcore-decode-incarnation": decode.incarnation}
    assert refusal(prefill, leg, **expected) == (421, "stale")
    assert refusal(decode, leg, **expected) == (421, "stale")
    assert refusal(decode, leg, **{**expected, "x-pdcore-decode-incarnation": "another"}) == (421, "stale")
    for engine in (prefill, decode):
        assert engine.gauge("pdcore_engine_steps_total") == 0
        assert engine.leftovers() == {}
