"""From the value of ``--store`` to a driver."""

from __future__ import annotations

from typing import Final

from pdcore.errors import ConfigError
from pdcore.registry.store import Store

ETCD: Final = "etcd://"
ETCD_PORT: Final = 2379
_WHERE: Final = "--store / PDCORE_STORE"


def open_store(url: str, *, timeout_s: float) -> Store:
    """The driver for ``url`` (``etcd://HOST[:PORT][,HOST[:PORT]...]``), not yet connected: enter it to use it.

    Raises :class:`ConfigError` naming the setting when the URL cannot work; credentials in it are never shown.
    """
    from pdcore.registry.etcd.driver import EtcdStore  # grpc is loaded only where a store is opened

    return EtcdStore(etcd_addresses(url), timeout_s=timeout_s)


def etcd_addresses(url: str) -> tuple[str, ...]:
    """Every ``host:port`` of an etcd URL, in its order, the default port filled in."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme + separator != ETCD:
        raise ConfigError(f"{_WHERE}: must start with {ETCD}, not with {scheme[:20]!r}")
    if "@" in rest:
        raise ConfigError(f"{_WHERE}: a user and password in the URL are not supported")
    members = rest.removesuffix("/").split(",")
    if any(character in rest.removesuffix("/") for character in "/?# "):
        raise ConfigError(f"{_WHERE}: only addresses may follow {ETCD}, not a path: {rest!r}")
    return tuple(_address(member) for member in members)


def _address(member: str) -> str:
    host, port = _split(member)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not host or not 1 <= number <= 65535:
        raise ConfigError(f"{_WHERE}: {member!r} is not HOST:PORT with a port from 1 to 65535")
    return f"{host}:{number}"


def _split(member: str) -> tuple[str, str]:
    if member.startswith("["):
        host, bracket, port = member.partition("]")
        return (host + bracket if bracket else "", port.removeprefix(":") or str(ETCD_PORT))
    host, colon, port = member.partition(":")
    return host, port if colon else str(ETCD_PORT)
