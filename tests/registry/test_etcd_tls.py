"""TLS to a real etcd: whom we trust, who we are, and what an operator reads when that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, ConfigError, StoreUnavailable
from pdcore.registry.connect import admitted_store, open_store
from pdcore.registry.etcd.condition import read_condition
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.identity import Identity, credentials
from pdcore.registry.store import Alive, Put
from pdcore.registry.tls_files import read_tls_files
from pdcore.topology.keys import Keyspace
from tests.registry.store_contract import next_revision, put
from tests.support.certificates import Authority, Certificate
from tests.support.etcd_server import EtcdServer, ServerTls, etcd_server
from tests.support.processes import free_port

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Servers:
    """``ours`` shows a certificate of ``authority``, ``misnamed`` one for another host; ``strict`` wants one too."""

    authority: Authority
    stranger: Authority
    ours: EtcdServer
    misnamed: EtcdServer
    strict: EtcdServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("tls")
    authority, stranger = Authority(directory, "authority"), Authority(directory, "stranger")
    own = authority.issue("server")
    elsewhere = authority.issue("elsewhere", "DNS:elsewhere", "IP:10.0.0.1")
    with (
        etcd_server(tls=ServerTls(own, authority.ca)) as ours,
        etcd_server(tls=ServerTls(elsewhere, authority.ca)) as misnamed,
        etcd_server(tls=ServerTls(own, authority.ca, client_ca=authority.ca)) as strict,
    ):
        yield Servers(authority, stranger, ours, misnamed, strict)


@pytest.fixture(scope="module")
def client(servers: Servers) -> Certificate:
    return servers.authority.issue("client")


def access(server: EtcdServer, ca: Path | None, own: Certificate | None = None) -> StoreAccess:
    return StoreAccess(
        url=server.url,
        timeout_s=WITHIN_S,
        ca=None if ca is None else str(ca),
        cert=None if own is None else str(own.cert),
        key=None if own is None else str(own.key),
    )


async def test_everything_works_over_tls(servers: Servers) -> None:
    async with open_store(access(servers.ours, servers.authority.ca)) as store:
        written = await put(store, "/k", b"1")
        lease = await store.grant(60)
        assert await store.keep_alive(lease) > 50
        assert (await store.list("/k")).entries["/k"].mod_revision == written
        async with store.watch("/k", written) as messages:
            assert isinstance(await anext(messages), Alive)
            later = await put(store, "/k", b"2")
            assert (await next_revision(messages)).revision == later


async def test_a_server_that_wants_a_certificate_gets_ours(servers: Servers, client: Certificate) -> None:
    async with open_store(access(servers.strict, servers.authority.ca, client)) as store:
        written = await put(store, "/k", b"1")
        async with store.watch("/k", written - 1) as messages:
            assert (await next_revision(messages)).revision == written
    condition = await read_condition(access(servers.strict, servers.authority.ca, client))
    assert condition.problems == ()


async def test_what_does_not_fit_is_said_in_one_line_and_refused_at_the_start(
    servers: Servers, client: Certificate
) -> None:
    ca, other = servers.authority.ca, servers.stranger.issue("client")
    for wrong, says in (
        (access(servers.ours, servers.stranger.ca), "not one that --store-ca vouches for: "),
        (access(servers.misnamed, ca), "its certificate is for another host name"),
        (access(servers.strict, ca), "it does not accept our certificate, or wants one"),
        (access(servers.strict, ca, other), "it does not accept our certificate, or wants one"),
    ):
        async with open_store(wrong) as store:
            with pytest.raises(AccessRefused, match=says):
                await store.get("/k")
            with pytest.raises(AccessRefused, match=says):
                await store.commit((), (Put("/k", b"v"),))
            with pytest.raises(AccessRefused, match=says):
                async with store.watch("/k", 0):
                    raise AssertionError("the watch was accepted")
        with pytest.raises(ConfigError, match=says) as refused:
            async with admitted_store(wrong, Keyspace(cluster="c")):
                raise AssertionError("let in")
        assert "\n" not in str(refused.value)
        assert str(refused.value).startswith("--store / PDCORE_STORE: etcd at 127.0.0.1:")


async def test_a_server_without_tls_and_one_that_wants_it_are_told_apart(
    servers: Servers, etcd_endpoint: str
) -> None:
    plain = StoreAccess(url=f"etcd://{etcd_endpoint}", timeout_s=2, ca=str(servers.authority.ca))
    async with open_store(plain) as store:
        with pytest.raises(StoreUnavailable, match="no TLS there, it seems"):
            await store.get("/k")
    async with open_store(access(servers.ours, None)) as store:
        with pytest.raises(StoreUnavailable, match="does it want TLS"):
            await store.get("/k")


def _trusting(named: StoreAccess) -> Identity:
    files = read_tls_files(named, "store")
    assert files is not None
    return Identity(tls=credentials(files))


async def test_a_member_with_a_wrong_certificate_is_left_for_the_next_one(servers: Servers) -> None:
    identity = _trusting(access(servers.ours, servers.authority.ca))
    addresses = (servers.misnamed.endpoint, f"127.0.0.1:{free_port()}", servers.ours.endpoint)
    async with EtcdStore(addresses, timeout_s=WITHIN_S, identity=identity, first=0) as store:
        await store.get("/k")
        assert repr(store).endswith(f"now {servers.ours.endpoint}>")
    # Nothing was sent to the one whose certificate is wrong: even a transaction may go on to the next.
    both = (servers.misnamed.endpoint, servers.ours.endpoint)
    async with EtcdStore(both, timeout_s=WITHIN_S, identity=identity, first=0) as store:
        assert (await store.commit((), (Put("/k", b"v"),))).succeeded
    async with EtcdStore(both, timeout_s=WITHIN_S, identity=identity, first=0) as store:
        with pytest.raises(AccessRefused):
            async with store.watch("/k", 0):
                raise AssertionError("the watch was accepted")
        async with store.watch("/k", 0) as messages:
            assert isinstance(await anext(messages), Alive)


async def test_a_store_is_refused_only_if_no_member_is_merely_away(servers: Servers) -> None:
    away = f"127.0.0.1:{free_port()}"
    ca = str(servers.authority.ca)
    for addresses in ((away, servers.misnamed.endpoint), (servers.misnamed.endpoint, away)):
        named = StoreAccess(url=f"etcd://{','.join(addresses)}", timeout_s=WITHIN_S, ca=ca)
        async with EtcdStore(addresses, timeout_s=WITHIN_S, identity=_trusting(named), first=0) as store:
            with pytest.raises(StoreUnavailable):
                await store.get("/k")
        async with admitted_store(named, Keyspace(cluster="c")) as store:
            with pytest.raises(StoreUnavailable):
                await store.list("/k")
