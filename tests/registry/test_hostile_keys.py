"""Whatever lies under the prefix, a follower on a real etcd goes on: each key is refused by name, nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import tracemalloc
from collections.abc import Iterator, Mapping

import pytest

from pdcore.registry.claims import holder_of
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.follower import Follower
from pdcore.registry.store import Delete, Put, Stored
from pdcore.topology import codec, keys
from pdcore.topology.events import Event, RecordRejected
from pdcore.topology.keys import Keyspace, RankId, RankPosition
from pdcore.topology.topology import Topology
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.fleet import complete, instance_record, rank_record

SPACE = Keyspace(cluster="hostile")
GOOD = {key: codec.encode(record) for key, record in complete("good", instance_record()).items()}
LARGEST = 1_400_000
PEAK_BYTES = 16 << 20
"""A few copies of the largest value on its way; a thousandth of what one of the sizes below would take."""

INSTANCE = codec.document(instance_record())
RANK = codec.document(rank_record())
NO_JSON: Mapping[str, bytes] = {
    "empty": b"",
    "text": b"not json",
    "binary": bytes(range(256)),
    "truncated": json.dumps(INSTANCE).encode()[:-9],
    "list": b"[]",
    "nan": b'{"v": 1, "x": NaN}',
    "twice": b'{"v": 1, "v": 1}',
    "surrogate": b'{"v": 1, "x": "\\ud800"}',
    "deep": b'{"v":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "endless": b'{"a":' * 10_000,
    "digits": b'{"v": 1, "tp_size": ' + b"9" * 60_000 + b"}",
    "huge": b'{"v": 1, "x": "' + b"x" * LARGEST + b'"}',
    "version": b'{"v": 2}',
}
FIELDS: Mapping[str, Mapping[str, object]] = {
    "tp_size": {"tp_size": 10**9},
    "product": {"dp_size": 1024, "cp_size": 1024, "tp_size": 1024},
    "negative": {"dp_size": -1},
    "boolean": {"tp_size": True},
    "float": {"tp_size": 2.0},
    "string": {"tp_size": "2"},
    "pp_size": {"pp_size": 2},
    "port 0": {"bootstrap_port": 0},
    "port 65536": {"bootstrap_port": 65536},
    "url port 0": {"url": "http://127.0.0.1:0"},
    "wildcard": {"bootstrap_host": "0.0.0.0"},
    "wildcard 6": {"bootstrap_host": "::"},
    "mapped wildcard": {"bootstrap_host": "::ffff:0.0.0.0"},
    "bracketed": {"bootstrap_host": "[::1]"},
    "url wildcard": {"url": "http://[::]:8000"},
    "credentials": {"url": "http://user:secret@127.0.0.1:8000"},
    "scheme": {"url": "file:///etc/passwd"},
    "models": {"models": [f"m{number}" for number in range(10_000)]},
    "compat": {"compat": []},
    "blocks": {"compat": {**codec.compat_document(instance_record().compat), "block_sizes": [10**9]}},
    "null": {"incarnation": None},
    "newline": {"machine": "a\nb"},
    "state": {"state": "ready"},
    "role": {"role": ["prefill"]},
}
RANK_FIELDS: Mapping[str, Mapping[str, object]] = {
    "rank port 0": {"rank_port": 0},
    "rank wildcard": {"rank_ip": "0.0.0.0"},
    "rank broadcast": {"rank_ip": "255.255.255.255"},
    "rank octal": {"rank_ip": "0177.0.0.1"},
    "transfer": {"transfer": [1]},
}
FOREIGN_KEYS = (
    *("instances/", "instances/a/b", "instances/..", "ranks/p0/0.0", "ranks/p0/-1.0.0", "ranks/p0/00.0.0"),
    *("ranks/p0/9999999999.0.0", "groups/g/generations/x", "nothing", "x" * 4000, "instances/\u202e"),
)


def corpus() -> Iterator[tuple[str, bytes]]:
    """Relative key and value; every value is refused under its key."""
    places = ("instances", "routers", "departures", "orders")
    for name, value in NO_JSON.items():
        for family in places if name != "huge" else places[:1]:
            yield f"{family}/{name}", value
        yield keys.rank(RankId(name, RankPosition(0, 0, 0))), value
        yield f"groups/{name}/desired", value
    for name, changes in FIELDS.items():
        yield f"instances/{name.replace(' ', '-')}", json.dumps({**INSTANCE, **changes}).encode()
    for name, changes in RANK_FIELDS.items():
        owner = RankId(name.replace(" ", "-"), RankPosition(0, 0, 0))
        yield keys.rank(owner), json.dumps({**RANK, **changes}).encode()
    for key in FOREIGN_KEYS:
        yield key, json.dumps(INSTANCE).encode()


CORPUS = dict(corpus())


@pytest.mark.integration
@pytest.mark.slow
async def test_a_follower_refuses_each_by_name_and_does_not_grow(shared_etcd: EtcdServer) -> None:
    told: list[Event] = []

    def note(events: tuple[Event, ...], topology: Topology) -> None:
        told.extend(events)

    async with EtcdStore((shared_etcd.endpoint,), timeout_s=5) as store:
        await _put(store, dict(list(CORPUS.items())[::2]))
        _put_key_that_is_no_text(shared_etcd)
        tracemalloc.start()
        try:
            async with Follower(store, SPACE) as follower:
                follower.subscribe(note)
                await eventually(lambda: follower.synced, 10, "listed")
                await _put(store, dict(list(CORPUS.items())[1::2]) | GOOD)
                await eventually(lambda: _is_ready(follower.topology), 10, "the last keys")
                peak = tracemalloc.get_traced_memory()[1]
                statistics = follower.statistics()
                rejected = dict(follower.topology.rejected)
                standing = follower.topology.instances
        finally:
            tracemalloc.stop()
            for key in (await store.list(SPACE.root)).entries:
                await store.commit((), (Delete(key),))
    assert CORPUS.keys() - rejected.keys() == set()
    assert {event.key for event in told if isinstance(event, RecordRejected)} >= CORPUS.keys()
    assert all(len(one.reason) < 300 for one in rejected.values())
    assert "secret" not in repr(rejected)
    assert [name for name, instance in standing.items() if instance.ready] == ["good"]
    assert (statistics.last_error, statistics.relists_total, statistics.repairs_total) == (None, 0, 0)
    assert peak < PEAK_BYTES, peak


def _is_ready(topology: Topology) -> bool:
    instance = topology.instances.get("good")
    return instance is not None and instance.ready


async def _put(store: EtcdStore, values: Mapping[str, bytes]) -> None:
    """One revision each."""
    for key, value in values.items():
        await store.commit((), (Put(SPACE.view + key, value),))


def _put_key_that_is_no_text(etcd: EtcdServer) -> None:
    key = SPACE.view.encode() + b"instances/\xff\xfe"
    subprocess.run(
        ["etcdctl", "--endpoints", etcd.endpoint, "put", key, "{}"],
        env={**os.environ, "ETCDCTL_API": "3"},
        check=True,
        capture_output=True,
        timeout=10,
    )


@pytest.mark.unit
def test_a_claim_names_somebody_briefly_whatever_is_written_there() -> None:
    assert holder_of(Stored(b"inc-1", 1, 1)) == "inc-1"
    assert len(holder_of(Stored(b"\xff" * LARGEST, 1, 1))) <= 128
