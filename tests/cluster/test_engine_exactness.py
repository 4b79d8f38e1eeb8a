"""Whatever layouts a pair has and however KV moves: the greedy text that transformers makes, in float32.

The legs are sent straight to the two leaders, as a router would, so that each pair is the one that is meant. Instances
are started when the first pair needs them and stay: starting ranks is what costs.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest
from redis import Redis

from tests.support.cluster import Cluster, Engine, Served
from tests.support.eventually import eventually_now
from tests.support.golden import Golden
from tests.support.namespaces import a_machine_alone, require_namespaces
from tests.support.processes import ChildProcess
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.cluster

START_S: Final = 300.0
ANSWER_S: Final = 60.0
REST_S: Final = 20.0
GONE_S: Final = 1.0
PROMPTS: Final = 8
MOST: Final = 16
CHUNKED: Final = ("--max-prefill-tokens", "64")
SENT: Final = {name: ("--per-chunk-sending", name) for name in ("on", "off")}
PATIENT: Final = ("--lease-ttl-s", "60")
"""Nothing here is about deaths, and many ranks on few cores keep each other waiting."""
TWO_MACHINES: Final = ("--nnodes", "2", "--host", "127.0.0.1")

LAYOUTS: Final[dict[str, tuple[str, ...]]] = {
    "one": (),
    "tp2": ("--tp", "2"),
    "dp2": ("--dp", "2"),
    "cp2": ("--cp", "2"),
    "dp2-tp2": ("--dp", "2", "--tp", "2"),
    "tp2 on two machines": ("--tp", "2", *TWO_MACHINES),
    "dp2-tp2 on two machines": ("--dp", "2", "--tp", "2", *TWO_MACHINES),
}


def prompts() -> list[str]:
    """From one token to three chunks."""
    dice = random.Random(29)
    letters = "abcdefghij klmnop qrstuvwxyz ,.\n0123456789ABCäß€"
    return ["".join(dice.choices(letters, k=length)) for length in (1, 7, 33, 64, 90, 120, 160, 190)]


class Site:
    """Instances by role, layout and transfer engine, in one keyspace."""

    def __init__(self, cluster: Cluster, golden: Golden, stack: ExitStack) -> None:
        self.cluster = cluster
        self.golden = golden
        self._stack = stack
        self._running: dict[tuple[str, ...], Engine] = {}
        self._rooms = count(1)

    def ready(self, *wanted: tuple[str, ...]) -> list[Engine]:
        """Instances of (role, layout, further flags …), started together if they are not there yet."""
        found = [self._running.get(key) or self._start(key) for key in wanted]
        self._running.update(zip(wanted, found, strict=True))
        return [engine.wait_ready(START_S) for engine in found]

    def legs(self, prefill: Engine, prompt: str, **more: object) -> tuple[int, dict[str, object]]:
        """A room of ``prefill``'s and the body of both of its legs."""
        room = next(self._rooms)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": MOST, "temperature": 0, **more}
        return room, {**body, "bootstrap_room": room, **self.cluster.bootstrap(prefill)}

    def _start(self, key: tuple[str, ...]) -> Engine:
        role, layout, *flags = key
        chunked = () if role == "decode" else CHUNKED
        leader = self.cluster.engine(role, *PATIENT, *LAYOUTS[layout], *chunked, *flags)
        if "--nnodes" in leader.arguments:
            log = leader.log.with_suffix(".other.log")
            other = ChildProcess(
                [*leader.arguments, "--node-rank", "1"], log, environ={"PDCORE_TORCH_THREADS": "1"}
            )
            self._stack.enter_context(other)
        return leader


@contextmanager
def site_in(directory: Path, model: Path) -> Iterator[Site]:
    with Cluster(directory, model) as cluster, ExitStack() as stack:
        cluster.etcd.start()
        yield Site(cluster, Golden(model), stack)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("site"), tiny_model) as site:
        yield site


def post(server: Served, body: dict[str, object]) -> str:
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=ANSWER_S, trust_env=False)
    assert answer.status_code == 200, f"{server.url}: {answer.text}"
    document = answer.json()
    return str(document["choices"][0]["text"]) if "choices" in document else ""


def pair_texts(site: Site, prefill: Engine, decode: Engine, dp_size: int) -> list[str]:
    """What ``decode`` answers to every prompt at once."""
    with ThreadPoolExecutor(2 * PROMPTS) as pool:
        answers: list[tuple[Future[str], Future[str]]] = []
        for prompt in prompts():
            room, body = site.legs(prefill, prompt)
            body["disagg_prefill_dp_rank"] = room % dp_size
            answers.append((pool.submit(post, prefill, body), pool.submit(post, decode, body)))
        for accepted, _ in answers:
            accepted.result()
        return [text.result() for _, text in answers]


def check(site: Site, texts: Sequence[str]) -> None:
    for prompt, text in zip(prompts(), texts, strict=True):
        site.golden.check_text(site.golden.text_ids(prompt), text, MOST)


def check_pair(site: Site, prefill_layout: str, decode_layout: str, *flags: str) -> None:
    """Twice: the second time block ids come in whatever order the first left them."""
    prefill, decode = site.ready(("prefill", prefill_layout, *flags), ("decode", decode_layout, *flags))
    before = decode.gauge("pdcore_engine_handoffs_ok_total")
    dp_size = 2 if "dp2" in prefill_layout else 1
    for _ in range(2):
        check(site, pair_texts(site, prefill, decode, dp_size))
    assert decode.gauge("pdcore_engine_handoffs_ok_total") == before + 2 * PROMPTS
    for dp in range(dp_size):
        assert prefill.gauge("pdcore_engine_prefill_tokens_total", rank=f"{dp}.0.0") > 0
    eventually_now(lambda: not (prefill.leftovers() or decode.leftovers()), REST_S, "a pair at rest")


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("one", "one"),
        ("tp2", "one"),
        ("one", "tp2"),
        ("tp2", "tp2"),
        ("cp2", "one"),
        ("dp2", "dp2"),
        ("tp2", "dp2"),
        ("dp2-tp2", "dp2-tp2"),
        ("tp2 on two machines", "dp2-tp2 on two machines"),
    ],
    ids=lambda layout: layout.replace(" ", "-"),
)
def test_a_pair_of_two_layouts(site: Site, prefill: str, decode: str) -> None:
    check_pair(site, prefill, decode)


@pytest.mark.parametrize(
    ("prefill", "decode"), [("one", "one"), ("tp2", "one"), ("one", "tp2"), ("cp2", "one")]
)
def test_chunks_that_are_sent_one_by_one(site: Site, prefill: str, decode: str) -> None:
    check_pair(site, prefill, decode, *SENT["on"])


def test_chunks_that_are_sent_together(site: Site) -> None:
    check_pair(site, "one", "one", *SENT["off"])


@pytest.mark.parametrize("sent", SENT)
def test_tcp_between_layouts(site: Site, sent: str) -> None:
    check_pair(site, "tp2", "one", "--transfer-engine", "tcp", *SENT[sent])


@pytest.mark.parametrize("layout", ["one", "tp2"])
def test_one_instance_alone(site: Site, layout: str) -> None:
    (unified,) = site.ready(("unified", layout))
    bodies = [
        {"model": "tiny", "prompt": prompt, "max_tokens": MOST, "temperature": 0} for prompt in prompts()
    ]
    with ThreadPoolExecutor(PROMPTS) as pool:
        check(site, list(pool.map(lambda body: post(unified, body), bodies)))


@pytest.mark.parametrize("sent", SENT)
def test_mooncake_where_nobody_else_can_reach_it(sent: str, tmp_path: Path, tiny_model: Path) -> None:
    require_namespaces()
    pytest.importorskip("mooncake.engine", reason="extra mooncake", exc_type=ImportError)
    with a_machine_alone() as machine, machine.entered(), site_in(tmp_path, tiny_model) as site:
        check_pair(site, "one", "one", "--transfer-engine", "mooncake", *SENT[sent])


Entries = Callable[[], dict[str, int]]


def entries_in_etcd(site: Site) -> dict[str, int]:
    """Room to DP rank as etcdctl shows them, of the entries under a lease that lives."""
    prefix = f"/pdcore/{site.cluster.cluster}/side/rooms/"
    found = {}
    for entry in etcdctl(site, "get", "--prefix", prefix).get("kvs", []):
        lease = etcdctl(site, "lease", "timetolive", f"{entry['lease']:x}")
        if lease["ttl"] > 0:
            room = base64.b64decode(entry["key"]).decode().rpartition("/")[2]
            found[room] = int(base64.b64decode(entry["value"]))
    return found


def etcdctl(site: Site, *arguments: str) -> dict[str, Any]:
    said = subprocess.run(
        ["etcdctl", f"--endpoints={site.cluster.etcd.endpoint}", *arguments, "-w", "json"],
        env={**os.environ, "ETCDCTL_API": "3"},
        capture_output=True,
        check=True,
        timeout=10,
    )
    document: dict[str, Any] = json.loads(said.stdout)
    return document


def entries_in_redis(control: Redis) -> dict[str, int]:
    """The same of a Redis that holds the room directory; an entry ends by itself."""
    found = {}
    for key in cast(list[bytes], control.keys("*/rooms/*")):
        value, ttl_s = cast(bytes | None, control.get(key)), control.ttl(key)
        if value is not None:
            assert ttl_s > 0
            found[key.decode().rpartition("/")[2]] = int(value)
    return found


def check_room_directory(site: Site, entries: Entries, *flags: str) -> None:
    """Rooms wait for decode, so that all of them can be looked at; then decode looks each up."""
    prefill, decode = site.ready(
        ("prefill", "dp2", "--dp-rank-choice", "engine", *flags), ("decode", "dp2", *flags)
    )
    legs = [site.legs(prefill, prompt) for prompt in prompts()]
    rooms = {str(room) for room, _ in legs}
    with ThreadPoolExecutor(2 * PROMPTS) as pool:
        accepted = [pool.submit(post, prefill, body) for _, body in legs]
        eventually_now(lambda: entries().keys() == rooms, REST_S, "every room in the directory")
        began = time.monotonic()
        assert set(entries().values()) == {0, 1}
        look_s = time.monotonic() - began
        check(site, list(pool.map(lambda leg: post(decode, leg[1]), legs)))
        for leg in accepted:
            leg.result()
        eventually_now(lambda: not entries(), GONE_S + 2 * look_s, "an empty room directory")


def test_the_room_directory_in_etcd_holds_a_room_while_its_request_runs(site: Site) -> None:
    check_room_directory(site, lambda: entries_in_etcd(site))


def test_the_room_directory_in_redis_holds_a_room_while_its_request_runs(
    tmp_path: Path, tiny_model: Path
) -> None:
    with redis_server() as redis, redis.control() as control, site_in(tmp_path, tiny_model) as site:
        check_room_directory(site, lambda: entries_in_redis(control), "--redis", redis.url)
