"""Engines named on a command line, for a router without a store: ``URL[,bootstrap=PORT] …``, or ``HOST[:PORT] …``.

A number after a prefill engine is its bootstrap port, as the Rust routers take it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from pdcore.config.setting import Parse

TargetRole = Literal["prefill", "decode", "unified"]

PORTS: Final[dict[TargetRole, int]] = {"prefill": 8001, "decode": 8100, "unified": 8200}
_LABELS: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One engine. ``host`` without brackets; ``bootstrap_port`` only of a prefill engine, if one was named; ``tls``: https."""

    role: TargetRole
    host: str
    port: int
    bootstrap_port: int | None = None
    tls: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def instance_id(self) -> str:
        """The id an instance has that was given none."""
        return f"{self.role}-{self.host}-{self.port}"


def targets(role: TargetRole) -> Parse:
    """Engines of ``role``, by blanks; each address once."""

    def parse(value: str) -> tuple[Target, ...]:
        found: list[Target] = []
        for word in value.split():
            if word.isdigit() and found and role == "prefill":
                found[-1] = replace(found[-1], bootstrap_port=_port(word))
            else:
                found.append(target(role, word))
        if not found:
            raise ValueError("names no engine")
        names = [one.instance_id for one in found]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name.removeprefix(f'{role}-')} is named twice")
        return tuple(found)

    return parse


def target(role: TargetRole, word: str) -> Target:
    """One engine; ValueError with the end of a sentence when ``word`` is none."""
    address, *options = word.split(",")
    tls, host, port = _address(address, word)
    bootstrap: int | None = None
    for option in options:
        name, _, value = option.partition("=")
        if name != "bootstrap" or role != "prefill":
            known = "bootstrap=PORT" if role == "prefill" else "nothing"
            raise ValueError(f"{word!r}: {option!r} is not known, only {known} may follow the address")
        bootstrap = _port(value)
    return Target(role=role, host=host, port=port or PORTS[role], bootstrap_port=bootstrap, tls=tls)


def _address(address: str, word: str) -> tuple[bool, str, int | None]:
    """Whether it is https, the host, and the port if one is named."""
    scheme, separator, _ = address.partition("://")
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"{word!r} must be HOST[:PORT] or http[s]://HOST[:PORT]")
    if not separator and address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"
    try:
        parts = urlsplit(address if separator else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError as wrong:
        raise ValueError(f"{word!r} is no address: {wrong}") from None
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc or not host:
        raise ValueError(f"{word!r} must be HOST[:PORT] or http[s]://HOST[:PORT], and nothing more")
    _check_host(host, word)
    if port == 0:
        raise ValueError(f"{word!r}: the port must be from 1 to 65535")
    return scheme == "https" and bool(separator), host, port


def _check_host(host: str, word: str) -> None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not _LABELS.fullmatch(host) or len(host) > 100 or host.rpartition(".")[2].isdigit():
            raise ValueError(f"{word!r}: {host!r} is neither an IP address nor a host name") from None
        return
    if address.is_unspecified or address.is_multicast or "%" in host:
        raise ValueError(f"{word!r}: nobody can be reached at {host}")


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is no port from 1 to 65535")
    return int(text)
