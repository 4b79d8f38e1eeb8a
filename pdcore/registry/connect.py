"""From the value of ``--store`` to a driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError
from pdcore.registry.store import Store

if TYPE_CHECKING:
    from pdcore.registry.etcd.endpoints import Endpoints

ETCD: Final = "etcd://"
ETCD_PORT: Final = 2379
_WHERE: Final = "--store / PDCORE_STORE"
_MEMBER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")


def open_store(access: StoreAccess) -> Store:
    """The driver for ``access.url`` (``etcd://HOST[:PORT][,HOST[:PORT]...]``), not yet connected: enter it to use it.

    Raises :class:`ConfigError` naming the setting when the URL cannot work; credentials in it are never shown.
    """
    from pdcore.registry.etcd.driver import EtcdStore  # grpc is loaded only where a store is opened

    return EtcdStore(etcd_addresses(access.url), timeout_s=access.timeout_s)


def etcd_endpoints(access: StoreAccess) -> Endpoints:
    """The members of the etcd cluster at ``access.url``, not yet connected. Raises ConfigError as above."""
    from pdcore.registry.etcd.endpoints import Endpoints

    return Endpoints(etcd_addresses(access.url), timeout_s=access.timeout_s)


def etcd_addresses(url: str) -> tuple[str, ...]:
    """Every ``host:port`` of an etcd URL, in its order, the default port filled in."""
    scheme, separator, rest = url.partition("://")
    if scheme + separator != ETCD:
        raise ConfigError(f"{_WHERE}: must start with {ETCD}, not with {scheme[:20]!r}")
    if "@" in rest:
        raise ConfigError(f"{_WHERE}: a user and password in the URL are not supported")
    return tuple(_address(member) for member in rest.removesuffix("/").split(","))


def _address(member: str) -> str:
    found = _MEMBER.fullmatch(member)
    port = int(found["port"] or ETCD_PORT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ConfigError(f"{_WHERE}: {member!r} is not HOST[:PORT] with a port from 1 to 65535")
    return f"{found['host']}:{port}"
