"""``pdcore topology wait``: asks every registered router, and says which one is not there yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.cli.routers import Said, Unreachable
from pdcore.cli.suspects import lines, suspects_in
from pdcore.cli.waiting import row
from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.store import Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import RouterRecord, StoreIdRecord
from tests.cli.test_commands import etcd
from tests.support import fake_engines as fake
from tests.support.etcd_server import EtcdServer
from tests.support.fake_engines import FakeEngine, Hang
from tests.support.processes import free_port

__all__ = ["etcd"]  # a fixture


def said(status: int = 200, **changes: object) -> bytes:
    return json.dumps({"revision": 9, "store_id": "s", "view_age_seconds": 0.5, **changes}).encode()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, said(), None),
        (200, said(view_age_seconds=None), None),
        (200, said(revision=8), "lags: it is at revision 8"),
        (200, said(store_id="t"), "follows another store (t)"),
        (200, said(revision="9"), "answered without a revision"),
        (200, said(revision=True), "answered without a revision"),
        (200, said(view_age_seconds="x"), "answered without a revision"),
        (200, b"[" * 100_000, "answered 200 with something else than a JSON object"),
        (200, b"\xff", "answered 200 with something else than a JSON object"),
        (404, b'{"error": {"message": "no"}}', "answered 404: no"),
        (504, b'{"error": {"message": "late"}}', "lags: late"),
        (504, b'{"error": []}', "lags: None"),
    ],
)
def test_only_an_answer_of_this_store_with_the_revision_counts(
    status: int, body: bytes, problem: str | None
) -> None:
    assert row("r", "http://h:1", Said.of(status, body), revision=9, store_id="s").problem == problem


@pytest.mark.unit
def test_suspects_are_told_per_router_whatever_a_router_answers() -> None:
    one = {"p0": {"standing": "kept", "reason": "its record vanished unexplained"}, "p1": None}
    assert suspects_in(Said.of(200, json.dumps({"suspects": one}).encode())) == one
    for body in (b"", b"[]", b"{}", b'{"suspects": []}'):
        assert suspects_in(Said.of(200, body)) == {}
    assert suspects_in(Unreachable("no")) == {}
    assert list(lines({"r1": one})) == [
        "p0 is suspect to r1: kept, its record vanished unexplained",
        "p1 is suspect to r1: None, None",
    ]


@pytest.fixture
async def store(etcd: EtcdServer) -> AsyncIterator[Store]:
    async with open_store(StoreAccess(url=etcd.url, timeout_s=5)) as opened:
        yield opened


async def wait(etcd: EtcdServer, cluster: str, revision: int, *flags: str) -> Result:
    before = ("--store", etcd.url, "--cluster", cluster)  # heard by the command behind it too
    arguments = ["topology", *before, "wait", "--revision", str(revision), *flags]
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def put_routers(store: Store, cluster: str, **urls: str) -> int:
    """Register routers at addresses; the revision of that."""
    view = Keyspace(cluster=cluster).view
    records = {
        keys.router(name): RouterRecord(url=url, admin_url=url, version="1") for name, url in urls.items()
    }
    puts = [Put(view + key, codec.encode(one)) for key, one in records.items()]
    store_id = Put(view + keys.STORE_ID, codec.encode(StoreIdRecord(store_id="s")))
    return (await store.commit((), (store_id, *puts))).revision


@pytest.mark.integration
async def test_it_succeeds_only_when_every_router_has_it_and_names_the_others(
    etcd: EtcdServer, store: Store
) -> None:
    lagging = fake.answer(504, {"error": {"message": "the view is at revision 1"}})
    async with FakeEngine([()]) as good, FakeEngine([lagging]) as late, FakeEngine([(Hang(),)]) as mute:
        revision = await put_routers(store, "good", r1=good.url)
        good.scripts = [fake.answer(200, json.loads(said(revision=revision + 1)))]

        fine = await wait(etcd, "good", revision)
        assert (fine.exit_code, fine.stderr) == (0, "")
        assert f"revision {revision}: 1 of 1 routers have it" in fine.stdout
        (asked, *_) = good.seen
        assert asked.path == f"/pdcore/revision?at_least={revision}&timeout_s=10.0"

        gone = f"http://127.0.0.1:{free_port()}"
        urls = {"r1": good.url, "r2": late.url, "r3": gone, "r4": mute.url}
        await put_routers(store, "mixed", **urls)
        mixed = await wait(etcd, "mixed", revision, "--timeout-s", "0.5", "--json")
        assert mixed.exit_code == 1
        document = json.loads(mixed.stdout)
        assert document["reached"] is False
        problems = {one["router_id"]: one["problem"] for one in document["routers"]}
        assert problems["r1"] is None
        assert problems["r2"] == "lags: the view is at revision 1"
        assert problems["r3"].startswith("not reachable: ")
        assert problems["r4"].startswith("not reachable: ")
        (line,) = mixed.stderr.splitlines()
        assert line.startswith(f"pdcore topology wait: not at revision {revision}: r2 (lags: ")
        assert "r1" not in line
        mute.release.set()


@pytest.mark.integration
async def test_no_router_is_no_success(etcd: EtcdServer, store: Store) -> None:
    await put_routers(store, "empty")

    none = await wait(etcd, "empty", 1)
    assert none.exit_code == 1
    assert none.stderr.splitlines() == [
        "pdcore topology wait: not at revision 1: no router is registered in cluster empty"
    ]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--revision"),
        (["--revision", "0"], "--revision"),
        (["--revision", "5", "--timeout-s", "61"], "--timeout-s"),
        (["--revision", "5", "--store", "http://h"], "--store / PDCORE_STORE"),
    ],
)
def test_what_cannot_work_is_exit_status_2(arguments: list[str], says: str) -> None:
    wrong = CliRunner().invoke(main, ["topology", "wait", *arguments])
    assert wrong.exit_code == 2
    assert says in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.integration
async def test_the_topology_shows_what_its_routers_doubt(etcd: EtcdServer, store: Store) -> None:
    said = {"p0": {"standing": "kept", "reason": "its record vanished unexplained"}}
    async with FakeEngine([fake.answer(200, {"suspects": said})]) as router:
        await put_routers(store, "doubted", r1=router.url, r2=f"http://127.0.0.1:{free_port()}")
        arguments = ["topology", "--store", etcd.url, "--cluster", "doubted"]
        table = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert "p0 is suspect to r1: kept, its record vanished unexplained" in table.stdout
        shown = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--json"])
        assert json.loads(shown.stdout)["suspects"] == {"r1": said}


@pytest.mark.integration
async def test_routers_are_shown_the_operators_token_and_no_message_holds_it(
    etcd: EtcdServer, store: Store, tmp_path: Path
) -> None:
    secret = "operators-0123456789"
    token, odd = tmp_path / "token", tmp_path / "odd"
    token.write_text(secret + "\n")
    odd.write_text(secret + " and more")
    async with FakeEngine([()]) as router:
        revision = await put_routers(store, "token", r1=router.url)
        router.scripts = [fake.answer(200, json.loads(said(revision=revision)))]
        fine = await wait(etcd, "token", revision, "--admin-token-file", str(token))
        assert (fine.exit_code, fine.stderr) == (0, "")
        assert router.seen[-1].headers["authorization"] == f"Bearer {secret}"
        for flag, file in (
            ("--admin-token-file", odd),
            ("--router-ca", odd),
            ("--router-ca", tmp_path / "no"),
        ):
            wrong = await wait(etcd, "token", revision, flag, str(file))
            assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
            assert f"{flag} / PDCORE_" in wrong.stderr
            assert secret not in wrong.stderr
        assert len(router.seen) == 1
