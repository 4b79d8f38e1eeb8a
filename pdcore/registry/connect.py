"""From the value of ``--store`` to a driver."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, ConfigError, StoreError
from pdcore.registry.store import Store
from pdcore.registry.store_identity import ensure_store_id
from pdcore.registry.tls_files import read_tls_files
from pdcore.telemetry import logger
from pdcore.topology.keys import Keyspace

if TYPE_CHECKING:
    from pdcore.registry.etcd.endpoints import Endpoints
    from pdcore.registry.etcd.identity import Identity

ETCD: Final = "etcd://"
REDIS: Final = ("redis://", "rediss://")
ETCD_PORT: Final = 2379
_WHERE: Final = "--store / PDCORE_STORE"
_MEMBER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_log = logger(__name__)


def open_store(access: StoreAccess) -> Store:
    """The driver for ``access.url``, not yet connected: enter it to use it.

    The URL is ``etcd://HOST[:PORT][,HOST[:PORT]...]``, or ``redis://HOST[:PORT][/DB]`` (``rediss://`` with TLS).
    Raises :class:`ConfigError` naming the setting when URL, login or files cannot work; secrets are never shown.
    """
    if access.url.startswith(REDIS):
        from pdcore.registry.redis.driver import RedisStore

        return RedisStore(access)
    from pdcore.registry.etcd.driver import EtcdStore  # grpc is loaded only where a store is opened

    addresses = etcd_addresses(access.url)
    return EtcdStore(addresses, timeout_s=access.timeout_s, identity=_etcd_identity(access))


@asynccontextmanager
async def admitted_store(access: StoreAccess, keyspace: Keyspace) -> AsyncIterator[Store]:
    """The driver, entered, for a process that starts: it ends here if the store does not let it in.

    Raises :class:`ConfigError` as :func:`open_store` does, and when the store refuses our certificate, user, password
    or to read and write in ``keyspace``. A store that does not answer is not judged: it may be there later.
    """
    async with open_store(access) as store:
        try:
            await ensure_store_id(store, keyspace.view)
        except AccessRefused as refused:
            raise ConfigError(f"{_WHERE}: {refused}") from refused
        except StoreError as error:
            _log.warning("the store does not answer yet", reason=str(error))
        if access.url.startswith(REDIS):
            _log.warning("a fail-over of this store may lose writes and claims", store=access.url)
        yield store


def etcd_endpoints(access: StoreAccess) -> Endpoints:
    """The members of the etcd cluster at ``access.url``, not yet connected. Raises ConfigError as above."""
    from pdcore.registry.etcd.endpoints import Endpoints

    addresses = etcd_addresses(access.url)
    return Endpoints(addresses, timeout_s=access.timeout_s, identity=_etcd_identity(access))


def _etcd_identity(access: StoreAccess) -> Identity:
    if access.user is not None and access.password is None:
        raise ConfigError(f"--store-user / PDCORE_STORE_USER: {access.user} needs PDCORE_STORE_PASSWORD")
    if access.password is not None and access.user is None:
        raise ConfigError("PDCORE_STORE_PASSWORD is of no use without --store-user / PDCORE_STORE_USER")
    files = read_tls_files(access, "store")
    from pdcore.registry.etcd.identity import Identity, credentials

    tls = None if files is None else credentials(files)
    return Identity(tls=tls, user=access.user, password=access.password)


def etcd_addresses(url: str) -> tuple[str, ...]:
    """Every ``host:port`` of an etcd URL, in its order, the default port filled in."""
    scheme, separator, rest = url.partition("://")
    if scheme + separator != ETCD:
        # Without a separator it may be anything, a login too.
        given = f", not with {scheme[:20]!r}" if separator else ""
        raise ConfigError(f"{_WHERE}: must start with {ETCD} or {REDIS[0]}{given}")
    if "@" in rest:
        raise ConfigError(
            f"{_WHERE}: a user and password do not belong into the URL: "
            "use --store-user and PDCORE_STORE_PASSWORD"
        )
    return tuple(_address(member) for member in rest.removesuffix("/").split(","))


def _address(member: str) -> str:
    found = _MEMBER.fullmatch(member)
    port = int(found["port"] or ETCD_PORT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ConfigError(f"{_WHERE}: {member!r} is not HOST[:PORT] with a port from 1 to 65535")
    return f"{found['host']}:{port}"
