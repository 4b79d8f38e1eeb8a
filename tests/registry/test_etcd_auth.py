"""Users, passwords and tokens of a real etcd: logging in, losing the token, auth switched on and off meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import grpc
import pytest

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, ConfigError, LeaseGone, StoreUnavailable
from pdcore.registry.connect import admitted_store, open_store
from pdcore.registry.doctor.examine import examine_store
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.condition import read_condition
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.identity import Identity
from pdcore.registry.etcd.methods import AUTHENTICATE, RANGE
from pdcore.registry.follower import Follower
from pdcore.registry.store import Alive, LeaseId, Put, Store
from pdcore.topology.keys import Keyspace
from tests.registry.store_contract import next_revision, put
from tests.support.etcd_auth import (
    PASSWORD,
    USER,
    add_user,
    as_root,
    change_password,
    signed_tokens,
    switch_off,
    switch_on,
)
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually
from tests.support.network import Relay

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WITHIN_S: Final = 10.0
PREFIX: Final = "/auth/"
KEY: Final = PREFIX + "k"
KEYSPACE: Final = Keyspace(cluster="read")
CHEAP_LOGINS: Final = ("--bcrypt-cost", "4")
KNOWN: Final = Identity(user=USER, password=PASSWORD)


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServer]:
    """An etcd that asks for users; every test leaves it so."""
    with etcd_server(extra=CHEAP_LOGINS) as server:
        add_user(server, PREFIX)
        switch_on(server)
        yield server


@pytest.fixture
def unguarded(guarded: EtcdServer) -> Iterator[EtcdServer]:
    """The same one while it asks nobody; the test may switch that."""
    switch_off(guarded)
    yield guarded
    with suppress(subprocess.CalledProcessError):  # it is on already
        switch_on(guarded)


@pytest.fixture
async def store(guarded: EtcdServer) -> AsyncIterator[Store]:
    async with _known(guarded) as opened:
        yield opened


def _known(server: EtcdServer) -> EtcdStore:
    return EtcdStore((server.endpoint,), timeout_s=WITHIN_S, identity=KNOWN)


def forget_tokens(server: EtcdServer) -> None:
    """Every token given out so far is refused."""
    switch_off(server)
    switch_on(server)


async def watch_once(store: Store) -> None:
    async with store.watch(PREFIX, 1) as messages:
        assert isinstance(await anext(messages), Alive)


async def keep_one_alive(store: Store) -> None:
    with pytest.raises(LeaseGone):
        await store.keep_alive(LEASE)


LEASE: Final = LeaseId(4711)
"""Nobody was granted it."""
CALLS: Final[dict[str, Callable[[Store], Awaitable[object]]]] = {
    "get": lambda store: store.get(KEY),
    "list": lambda store: store.list(PREFIX),
    "commit": lambda store: put(store, KEY, b"v"),
    "grant": lambda store: store.grant(60),
    "keep_alive": keep_one_alive,
    "revoke": lambda store: store.revoke(LEASE),
    "watch": watch_once,
}


async def test_a_forgotten_token_is_renewed_within_the_call_whichever_it_is(guarded: EtcdServer) -> None:
    async with AsyncExitStack() as opened:
        stores = {name: await opened.enter_async_context(_known(guarded)) for name in CALLS}
        for store in stores.values():
            await store.get(KEY)
        await asyncio.to_thread(forget_tokens, guarded)
        for name, store in stores.items():
            await CALLS[name](store)


async def test_many_calls_that_lose_their_token_log_in_once(guarded: EtcdServer, store: Store) -> None:
    await store.get(KEY)
    await asyncio.to_thread(forget_tokens, guarded)
    before = await asyncio.to_thread(guarded.calls, "Authenticate")
    await asyncio.gather(*(store.get(KEY) for _ in range(50)))
    assert await asyncio.to_thread(guarded.calls, "Authenticate") == before + 1


async def test_a_running_watch_outlives_its_token(guarded: EtcdServer, store: Store) -> None:
    position = await put(store, KEY, b"1")
    async with store.watch(PREFIX, position) as messages:
        assert isinstance(await anext(messages), Alive)
        await asyncio.to_thread(forget_tokens, guarded)
        written = await put(store, KEY, b"2")
        assert (await next_revision(messages)).revision == written


async def test_a_watch_that_logs_in_again_leaves_no_stream_behind(guarded: EtcdServer, store: Store) -> None:
    await store.get(KEY)
    await asyncio.to_thread(forget_tokens, guarded)
    async with store.watch(PREFIX, 1) as messages:
        assert isinstance(await anext(messages), Alive)

        def streams() -> float:
            return guarded.metric("etcd_debugging_mvcc_watch_stream_total ")

        await eventually(lambda: streams() == 1, WITHIN_S, "only the stream of the watch is open")


async def test_signed_tokens_are_renewed_when_they_expire_or_the_users_changed(tmp_path: Path) -> None:
    flags = await asyncio.to_thread(signed_tokens, tmp_path, "2s")
    with etcd_server(extra=(*CHEAP_LOGINS, *flags)) as server:
        add_user(server, PREFIX)
        switch_on(server)
        async with _known(server) as one, _known(server) as other:
            await put(one, KEY, b"1")
            await other.get(KEY)
            as_root(
                server, "role", "add", "another"
            )  # their tokens are for an older revision of the users now
            await one.list(PREFIX)
            await watch_once(other)
            await _wait_until_a_token_expires(server.endpoint)
            assert await one.grant(60)
            assert await other.get(KEY)


async def _wait_until_a_token_expires(endpoint: str) -> None:
    """Using a signed token does not prolong it: one that is given out now lives longer than those before."""
    ask = wire.AuthenticateRequest(name=USER, password=PASSWORD)
    async with grpc.aio.insecure_channel(endpoint) as channel:
        log_in = channel.unary_unary(AUTHENTICATE.path, wire.AuthenticateRequest.SerializeToString)
        answer = wire.AuthenticateResponse.FromString(await log_in(ask, timeout=WITHIN_S))
        read = channel.unary_unary(RANGE.path, wire.RangeRequest.SerializeToString)

        async def expired() -> bool:
            try:
                await read(wire.RangeRequest(key=KEY.encode()), metadata=(("token", answer.token),))
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAUTHENTICATED
            return False

        await eventually(expired, WITHIN_S, "the token expired")


async def test_a_wrong_password_and_a_missing_one_are_refused_in_words(guarded: EtcdServer) -> None:
    wrong = Identity(user=USER, password="hunter3")
    async with EtcdStore((guarded.endpoint,), timeout_s=WITHIN_S, identity=wrong) as store:
        for call in CALLS.values():
            with pytest.raises(AccessRefused, match="invalid user ID or password") as refused:
                await call(store)
            assert "hunter3" not in f"{refused.value!r}{refused.value.__cause__!r}"
    async with EtcdStore((guarded.endpoint,), timeout_s=WITHIN_S) as store:
        before = await asyncio.to_thread(guarded.calls, "Range")
        with pytest.raises(AccessRefused):
            await store.get(KEY)
        assert await asyncio.to_thread(guarded.calls, "Range") == before + 1
        for name in ("get", "list", "commit", "watch"):
            with pytest.raises(
                AccessRefused, match=r"asks for a user .--store-user and PDCORE_STORE_PASSWORD"
            ):
                await CALLS[name](store)


async def test_a_user_without_permission_is_refused_and_not_logged_in_again(
    guarded: EtcdServer, store: Store
) -> None:
    await store.get(KEY)
    before = await asyncio.to_thread(guarded.calls, "Authenticate")
    with pytest.raises(AccessRefused, match="permission denied"):
        await store.get("/elsewhere")
    with pytest.raises(AccessRefused, match="permission denied"):
        async with store.watch("/elsewhere", 1):
            raise AssertionError("the watch was accepted")
    assert await asyncio.to_thread(guarded.calls, "Authenticate") == before


async def test_a_process_whose_user_may_only_read_ends_at_its_start(guarded: EtcdServer) -> None:
    for command in (
        ("role", "add", "reader"),
        ("role", "grant-permission", "reader", "--prefix=true", "read", KEYSPACE.root),
        ("user", "add", f"reader:{PASSWORD}"),
        ("user", "grant-role", "reader", "reader"),
    ):
        await asyncio.to_thread(as_root, guarded, *command)
    access = StoreAccess(url=guarded.url, timeout_s=WITHIN_S, user="reader", password=PASSWORD)
    for _ in ("without an id", "with one"):
        with pytest.raises(ConfigError, match=r"--store / PDCORE_STORE: .*permission denied"):
            async with admitted_store(access, KEYSPACE):
                raise AssertionError("it was let in")
        await asyncio.to_thread(as_root, guarded, "put", KEYSPACE.view + "store_id", '"s"')
    findings = await examine_store(access, KEYSPACE)
    (use,) = [one for one in findings if one.about == "use"]
    assert (use.level, use.todo) == (
        "fail",
        f"grant the account reading and writing below {KEYSPACE.root}",
    )


async def test_a_login_counts_when_auth_is_switched_on_and_does_no_harm_before_and_after(
    unguarded: EtcdServer,
) -> None:
    async with _known(unguarded) as store:
        for switch in (None, switch_on, switch_off, switch_on):
            if switch is not None:
                await asyncio.to_thread(switch, unguarded)
            for call in CALLS.values():
                await call(store)


async def test_a_changed_password_is_told_and_not_fatal(guarded: EtcdServer, store: Store) -> None:
    lease = await store.grant(60)
    await asyncio.to_thread(change_password, guarded, "another")
    with pytest.raises(AccessRefused, match="invalid user ID or password"):
        await store.get(KEY)
    assert await store.keep_alive(lease) > 50
    await asyncio.to_thread(change_password, guarded, PASSWORD)
    await store.get(KEY)


async def test_a_follower_without_a_login_says_so_and_recovers_when_auth_is_off_again(
    unguarded: EtcdServer,
) -> None:
    keyspace = Keyspace(cluster="c")
    async with (
        Relay.to(unguarded.endpoint) as relay,
        EtcdStore((relay.endpoint,), timeout_s=WITHIN_S) as store,
        Follower(store, keyspace) as follower,
    ):
        await follower.wait_until(lambda topology: topology.revision > 0, WITHIN_S)
        await asyncio.to_thread(switch_on, unguarded)
        relay.cut()
        await eventually(lambda: "asks for a user" in (follower.last_error or ""), WITHIN_S, "it says so")
        assert follower.synced
        await asyncio.to_thread(switch_off, unguarded)
        await eventually(lambda: follower.last_error is None, WITHIN_S, "it follows again")
        assert follower.repairs_total == follower.relists_total == 0


class _Silent(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    """Takes every call and answers none."""

    def service(self, handler_call_details: object) -> object:
        return grpc.unary_unary_rpc_method_handler(self._take)

    async def _take(self, request: bytes, context: object) -> bytes:
        await asyncio.Event().wait()
        return b""


async def test_a_login_that_is_not_answered_ends_with_the_deadline_of_every_call_that_waits_for_it() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Silent(),))
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with EtcdStore((endpoint,), timeout_s=0.5, identity=KNOWN) as store:
            began = time.monotonic()
            for failed in await asyncio.gather(*(store.get(KEY) for _ in range(100)), return_exceptions=True):
                assert isinstance(failed, StoreUnavailable)
            assert time.monotonic() - began < 3, "they waited for each other"
    finally:
        await server.stop(0)


async def test_a_login_is_tried_again_once_the_store_answers(guarded: EtcdServer) -> None:
    async with (
        Relay.to(guarded.endpoint) as relay,
        EtcdStore((relay.endpoint,), timeout_s=0.5, identity=KNOWN) as store,
    ):
        relay.pause()
        for call in (CALLS["get"], CALLS["watch"]):
            with pytest.raises(StoreUnavailable):
                await call(store)
        relay.resume()
        await eventually(lambda: _answers(store), WITHIN_S, "the store answers again")


async def _answers(store: Store) -> bool:
    try:
        await store.get(KEY)
    except StoreUnavailable:
        return False
    return True


async def test_the_condition_is_read_with_the_same_login(guarded: EtcdServer) -> None:
    access = StoreAccess(url=guarded.url, timeout_s=WITHIN_S, user=USER, password=PASSWORD)
    condition = await read_condition(access)
    assert condition.problems == ()
    assert condition.answers[0].status is not None
    async with open_store(access) as store:
        assert (await store.commit((), (Put(KEY, b"by access"),))).succeeded
