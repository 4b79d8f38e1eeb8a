"""Orders as an operator gives them, to real leaders behind real routers on a real etcd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from tests.support.cluster import Engine, Router
from tests.support.etcd_server import etcd_server
from tests.support.eventually import eventually_now
from tests.support.leaders import Leaders
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHORT = {"model": "tiny", "prompt": [ord("a")], "max_tokens": 3}
SILENT = {"prompt": [ord("!")], "max_tokens": 50}


@pytest.fixture(scope="module")
def leaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaders]:
    directory = tmp_path_factory.mktemp("orders")
    with etcd_server() as etcd:
        some = Leaders(etcd, directory, write_tiny_llama(directory / "tiny"))
        with some.cluster:
            yield some
        some.close()


@pytest.fixture(scope="module")
def stays(leaders: Leaders) -> Engine:
    """An instance that is ordered nothing until the last test."""
    return leaders.start("unified")


@pytest.fixture(scope="module")
def routers(leaders: Leaders, stays: Engine) -> tuple[Router, Router]:
    taking_turns = ("--policy", "round_robin")  # else one prompt has one home
    return leaders.cluster.router(*taking_turns), leaders.cluster.router(*taking_turns)


@pytest.fixture(scope="module")
def restartable(leaders: Leaders) -> Engine:
    return leaders.start("unified")


@pytest.fixture
def engine(leaders: Leaders, restartable: Engine) -> Engine:
    """An instance that serves and is under no order, whatever the test before did to it."""
    if not restartable.running:
        restartable.start()
    restartable.wait_ready()
    assert order(leaders, restartable) is None
    return restartable


def where(leaders: Leaders) -> tuple[str, ...]:
    return ("--store", leaders.etcd.url, "--cluster", leaders.cluster.cluster)


def pdcore(leaders: Leaders, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a process; in the test's own when nothing depends on that."""
    return subprocess.run(
        [sys.executable, "-m", "pdcore", "instance", *arguments, *where(leaders)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def instance(leaders: Leaders, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["instance", *arguments, *where(leaders)])


def ordered(leaders: Leaders, *arguments: str) -> dict[str, Any]:
    done = instance(leaders, *arguments, "--json")
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def asked(engine: Engine) -> float:
    """How many generation requests have come to ``engine``, refused ones too."""
    return engine.gauge("pdcore_engine_requests_total") + engine.gauge("pdcore_engine_http_in_flight")


def revision_of(router: Router) -> int:
    answer = router.get("/pdcore/topology")
    assert answer is not None
    revision: int = answer.json()["revision"]
    return revision


def hold(engine: Engine, ms: int) -> httpx.Response:
    """A request that ``engine`` holds until its budget ends."""
    headers = {"x-pdcore-remaining-ms": str(ms)}
    return httpx.post(f"{engine.url}/generate", json=SILENT, headers=headers, timeout=90, trust_env=False)


@contextmanager
def traffic(*routers: Router) -> Iterator[list[int]]:
    """Requests through every router, one after the other, while the block lasts; their statuses."""
    statuses: list[int] = []
    over = threading.Event()

    def ask(router: Router) -> None:
        while not over.is_set():
            statuses.append(router.post("/v1/completions", SHORT).status_code)

    with ThreadPoolExecutor(len(routers)) as pool:
        asking = [pool.submit(ask, router) for router in routers]
        try:
            yield statuses
        finally:
            over.set()
            for one in asking:
                one.result(20)


def departure(leaders: Leaders, engine: Engine) -> object:
    return leaders.cluster.keyspace().get(f"departures/{engine.instance_id}", {}).get("reason")


def record(leaders: Leaders, engine: Engine) -> dict[str, Any]:
    return leaders.cluster.keyspace().get(f"instances/{engine.instance_id}", {})


def order(leaders: Leaders, engine: Engine) -> dict[str, Any] | None:
    return leaders.cluster.keyspace().get(f"orders/{engine.instance_id}")


def test_no_router_picks_a_drained_instance_after_the_revision(
    leaders: Leaders, stays: Engine, routers: tuple[Router, Router], engine: Engine
) -> None:
    stays.wait_ready()
    for router in routers:
        router.wait_ready()
    with traffic(*routers) as statuses:
        eventually_now(lambda: asked(engine) > 10 and asked(stays) > 10, 20, "both are asked")
        said = ordered(leaders, "drain", engine.instance_id)
        assert (said["changed"], said["incarnation"]) == (True, engine.incarnation)
        eventually_now(lambda: all(revision_of(router) >= said["revision"] for router in routers), 10)
        eventually_now(lambda: record(leaders, engine).get("drained"), 10, "what was on its way")
        before, served = asked(engine), len(statuses)
        eventually_now(lambda: len(statuses) > served + 40, 20, "more traffic")
        assert asked(engine) == before
        refused = httpx.post(f"{engine.url}/generate", json=SHORT, timeout=5, trust_env=False)
        assert (refused.status_code, refused.headers["x-pdcore-refused"]) == (421, "draining")

        assert ordered(leaders, "undrain", engine.instance_id)["changed"]
        assert order(leaders, engine) is None
        eventually_now(lambda: asked(engine) > before + 5, 20, "it is asked again")
    assert set(statuses) == {200}
    assert (record(leaders, engine)["state"], "drained" in record(leaders, engine)) == ("serving", False)


@pytest.mark.cluster
def test_a_sticky_order_holds_for_the_next_start(leaders: Leaders, engine: Engine) -> None:
    first = engine.incarnation
    ordered(leaders, "drain", engine.instance_id, "--sticky")
    engine.kill()
    engine.start()
    eventually_now(lambda: record(leaders, engine).get("drained"), 30, "the next start drains")
    assert record(leaders, engine)["incarnation"] != first
    ordered(leaders, "undrain", engine.instance_id)
    assert engine.wait_ready().incarnation != first


def test_a_drained_instance_finishes_what_it_has_and_leaves_as_drained(
    leaders: Leaders, engine: Engine
) -> None:
    with ThreadPoolExecutor(1) as client:
        held = client.submit(hold, engine, 1500)
        eventually_now(lambda: engine.gauge("pdcore_engine_http_in_flight") == 1, 10, "a held request")
        waited = pdcore(leaders, "drain", engine.instance_id, "--wait")
        assert (waited.returncode, waited.stderr) == (0, "")
        assert f"{engine.instance_id} drains (incarnation {engine.incarnation})" in waited.stdout
        assert held.result(20).status_code == 504  # its own budget, not the drain's
    assert (record(leaders, engine)["state"], record(leaders, engine)["drained"]) == ("draining", True)
    shown = instance(leaders, "show", engine.instance_id)
    assert "it takes no new requests and has finished those it had" in shown.stdout
    assert f"ordered: drain incarnation {engine.incarnation}, by " in shown.stdout
    assert ordered(leaders, "drain", engine.instance_id)["changed"] is False
    engine.signal(signal.SIGTERM)
    assert engine.wait(10) == 0
    assert departure(leaders, engine) == "drained"
    assert order(leaders, engine) is None


def test_an_unknown_instance_is_a_line_that_names_what_is_near(leaders: Leaders, stays: Engine) -> None:
    stays.wait_ready()
    for words in (("drain",), ("undrain",), ("end", "--yes"), ("show",)):
        done = instance(leaders, *words, f"{stays.instance_id}9")
        (line,) = done.stderr.splitlines()
        assert (done.exit_code, f"did you mean {stays.instance_id}?" in line) == (2, True), line
    assert instance(leaders, "drain", "a/b").exit_code == 2


def test_an_instance_is_shown_for_programs(leaders: Leaders, stays: Engine) -> None:
    stays.wait_ready()
    shown = ordered(leaders, "show", stays.instance_id)
    assert (shown["claim"], shown["order"], shown["departure"]) == (stays.incarnation, None, None)
    assert shown["instance"]["ready"] is True
    assert [(rank["position"], rank["standing"]) for rank in shown["ranks"]] == [("0.0.0", "present")]


def test_an_instance_ordered_to_end_is_killed_and_says_why(leaders: Leaders, stays: Engine) -> None:
    """The last one, because it ends the instance that the others leave alone."""
    children = psutil.Process(stays.wait_ready().pid).children()
    refused = instance(leaders, "end", stays.instance_id)
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    with ThreadPoolExecutor(1) as client:
        held = client.submit(hold, stays, 60_000)
        eventually_now(lambda: stays.gauge("pdcore_engine_http_in_flight") == 1, 10, "a held request")
        ended = pdcore(leaders, "end", stays.instance_id, "--yes", "--wait")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert held.result(20).status_code == 502
    assert stays.wait(10) == 70
    eventually_now(lambda: departure(leaders, stays) == "ordered", 10)
    eventually_now(lambda: not any(child.is_running() for child in children), 10, "no process is left")
