"""Who else can reach a store, judged by how we do. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from pdcore.config import StoreAccess
from pdcore.registry.doctor.finding import Finding, ok, warn


def judge_access(access: StoreAccess) -> tuple[Finding, ...]:
    """TLS and login, which matter as soon as an address is not this machine's own."""
    away = [host for host in hosts(access.url) if not is_loopback(host)]
    found = tuple(_judge(access, away[0] if away else None))
    return found or (ok("access", "only over loopback: neither TLS nor a login is needed"),)


def _judge(access: StoreAccess, host: str | None) -> Iterator[Finding]:
    """``host`` is one that others may reach too; None when there is none, and nothing is missing then."""
    if access.ca is not None or access.url.startswith("rediss://"):
        yield ok("access", "the connection is encrypted")
    elif host is not None:
        says = (
            f"{host} is reached without TLS: whoever sees or joins the network can read and write the fleet"
        )
        yield warn("access", says, "give the store a certificate and set --store-ca / PDCORE_STORE_CA")
    if access.user is not None or access.cert is not None:
        how = "as a user" if access.user is not None else "with a client certificate"
        yield ok("access", f"we log in {how}")
    elif host is not None:
        says = f"{host} lets us in without a login"
        yield warn("access", says, "switch authentication on, or ask for client certificates")


def hosts(url: str) -> tuple[str, ...]:
    """The host of every address in a store's URL, without brackets."""
    rest = url.partition("://")[2].partition("/")[0]
    return tuple(urlsplit(f"//{member}").hostname or "" for member in rest.split(","))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
