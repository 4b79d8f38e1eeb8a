"""Logging in to Redis: passwords, a user with as few rights as are needed, TLS and mTLS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, StoreUnavailable
from pdcore.registry.redis.driver import RedisStore
from pdcore.registry.redis.watch import Patience
from pdcore.registry.store import Put
from tests.registry.store_contract import WITHIN_S, next_revision, put
from tests.support.certificates import Authority
from tests.support.redis_server import RedisServer, RedisTls, redis_server

pytestmark = pytest.mark.integration

RIGHTS = ("~{pdcore}:*", "+@all", "-@dangerous", "+info")
"""What the README tells an operator to give."""


def acl(redis: Redis, *command: str) -> None:
    """An ACL command as an operator types it."""
    execute: Callable[..., object] = redis.execute_command
    execute("ACL", *command)


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A Redis where only ``pdcore`` gets in with the password ``right``, and may do what is needed."""
    with redis_server(password="control") as server:
        with server.control() as redis:
            acl(redis, "SETUSER", "pdcore", "on", ">right", *RIGHTS)
        yield server


async def test_a_user_with_the_documented_rights_can_do_everything(guarded: RedisServer) -> None:
    access = StoreAccess(url=guarded.url, timeout_s=WITHIN_S, user="pdcore", password="right")
    async with RedisStore(access) as store:
        lease = await store.grant(60)
        start = (await store.list("")).revision
        async with store.watch("", start) as messages:
            revision = (await store.commit((), (Put("k", b"v", lease),))).revision
            assert (await next_revision(messages)).revision == revision
        assert await store.keep_alive(lease) == 60
        assert await store.reap() is not None
        await store.revoke(lease)
        assert await store.get("k") is None
        with guarded.control() as redis:
            acl(redis, "SETUSER", "pdcore", "resetkeys", "~other:*")
        for call in (store.get("k"), store.list(""), put(store, "k", b"v"), store.keep_alive(lease)):
            with pytest.raises(AccessRefused):
                await call


async def test_a_wrong_login_is_refused_and_not_shown(guarded: RedisServer) -> None:
    for user, password in (("pdcore", "hunter2"), ("nobody", "hunter2"), (None, "hunter2"), (None, None)):
        access = StoreAccess(url=guarded.url, timeout_s=WITHIN_S, user=user, password=password)
        async with RedisStore(access) as store:
            with pytest.raises(AccessRefused) as refused:
                await store.get("k")
            with pytest.raises(AccessRefused):
                async with store.watch("k", 0) as messages:
                    await anext(messages)
        assert "hunter2" not in f"{refused.value} {store!r} {access!r}"


async def test_tls_is_spoken_both_ways(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("tls")
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    us, them = authority.issue("us"), authority.issue("them")
    with redis_server(tls=RedisTls(them, authority.ca, mutual=True)) as server:
        url = server.url
        access = StoreAccess(
            url=url, timeout_s=WITHIN_S, ca=str(authority.ca), cert=str(us.cert), key=str(us.key)
        )
        async with RedisStore(access, patience=Patience(ping_s=0.3, answer_s=0.5)) as store:
            revision = await put(store, "k", b"v")
            async with store.watch("k", revision - 1) as messages:
                assert (await next_revision(messages)).revision == revision
                server.pause()  # closing must not wait for a peer that says nothing
                with pytest.raises(StoreUnavailable):
                    await next_revision(messages)
                began = time.monotonic()
            server.resume()
            assert time.monotonic() - began < 2 * WITHIN_S
        for wrong in (
            StoreAccess(url=url, timeout_s=WITHIN_S, ca=str(authority.ca)),
            StoreAccess(url=url, timeout_s=WITHIN_S, ca=str(stranger.ca)),
        ):
            async with RedisStore(wrong) as store:
                with pytest.raises(AccessRefused):
                    await store.get("k")
