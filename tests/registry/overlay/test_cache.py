"""The cached view: written whole or not at all, and believed only where it can be."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.overlay import cache
from pdcore.registry.store import Put
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Stored, Topology, build
from tests.registry.faulty_store import HurriedClock
from tests.support.eventually import eventually
from tests.support.fleet import complete, instance_record, stored

pytestmark = pytest.mark.unit
WITHIN_S = 10.0


def topology() -> Topology:
    listed = stored({**complete("p0", instance_record()), **complete("d0", instance_record("decode"))}, 7)
    return build({**listed, "instances/bad": Stored(b"\xff", 8)}, 9)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "view.json"


def test_what_is_written_is_read_again(file: Path) -> None:
    cache.write(file, topology(), "c")
    found = cache.read(file, "c")
    assert found is not None
    assert found.instances == topology().instances
    assert found.revision == 9
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]


def test_no_file_is_no_view(file: Path) -> None:
    assert cache.read(file, "c") is None


GOOD = json.loads(cache.encode(topology(), "c"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[[[",
        b"[" * 100_000,
        b"null",
        json.dumps({**GOOD, "v": 2}).encode(),
        json.dumps({**GOOD, "v": "1"}).encode(),
        json.dumps({**GOOD, "cluster": "other"}).encode(),
        json.dumps({**GOOD, "more": 1}).encode(),
        json.dumps({**GOOD, "keys": {"instances/p0": ["{}", "7"]}}).encode(),
        json.dumps({**GOOD, "keys": {"instances/p0": "{}"}}).encode(),
        json.dumps({**GOOD, "keys": {"instances/p0": ["{}", 1 << 70]}}).encode(),
        json.dumps({**GOOD, "keys": [["instances/p0", "{}", 7]]}).encode(),
    ],
)
def test_what_is_no_view_of_this_cluster_is_ignored_with_one_line(
    file: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    file.chmod(0o600)
    assert cache.read(file, "c") is None
    (line,) = capsys.readouterr().out.splitlines()
    assert "cached view ignored" in line


def test_hostile_values_are_refused_one_by_one(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(json.dumps({**GOOD, "keys": {"instances/p0": ["{}", 7], "x/../y": ["1", 7]}}).encode())
    file.chmod(0o600)
    found = cache.read(file, "c")
    assert found is not None
    assert dict(found.instances) == {}


def test_a_file_that_others_may_have_written_or_that_is_none_is_ignored(file: Path, tmp_path: Path) -> None:
    cache.write(file, topology(), "c")
    file.chmod(0o620)
    assert cache.read(file, "c") is None
    file.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert cache.read(link, "c") is None
    assert cache.read(tmp_path, "c") is None
    os.mkfifo(tmp_path / "pipe")
    assert cache.read(tmp_path / "pipe", "c") is None
    if os.geteuid() == 0:
        os.chown(file, 1, 1)
        assert cache.read(file, "c") is None


def test_sizes_are_bounded_in_both_directions(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(file, topology(), "c")
    monkeypatch.setattr(cache, "MAX_BYTES", 100)
    assert cache.read(file, "c") is None
    before = file.read_bytes()
    with pytest.raises(cache.NoCache):
        cache.write(file, topology(), "c")
    assert file.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(file, topology(), "c")
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cache.write(file, Topology.empty(), "c")
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


async def test_a_followed_view_is_kept_while_it_changes_and_once_more_at_the_end(file: Path) -> None:
    space, clock = Keyspace(cluster="c"), HurriedClock()

    async def put(name: str) -> None:
        record = codec.encode(instance_record(incarnation=name))
        await store.commit((), (Put(space.view + keys.instance(name), record),))

    def names() -> set[str]:
        found = cache.read(file, "c")
        return set() if found is None else set(found.instances)

    async with MemoryStore() as store, Follower(store, space, clock=clock) as follower:
        async with cache.keeping(file, follower, "c", clock):
            await put("a")
            await eventually(lambda: names() == {"a"}, WITHIN_S)
            clock.speed = 0.001
            await eventually(lambda: follower.synced, WITHIN_S)
            await put("b")
            await follower.wait_until(lambda view: "b" in view.instances, WITHIN_S)
        assert names() == {"a", "b"}


async def test_a_directory_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    clock = HurriedClock()
    async with MemoryStore() as store, Follower(store, Keyspace(cluster="c"), clock=clock) as follower:
        await follower.wait_until(lambda _: True, WITHIN_S)
        async with cache.keeping(blocked / "view.json", follower, "c", clock):
            await put_any(store)
            await follower.wait_until(lambda view: bool(view.instances), WITHIN_S)
    assert os.listdir(tmp_path) == ["a file"]


async def put_any(store: MemoryStore) -> None:
    key = Keyspace(cluster="c").view + keys.instance("a")
    await store.commit((), (Put(key, codec.encode(instance_record())),))
