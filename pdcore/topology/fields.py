"""Checks of single field values: what a record may hold, each refusal a sentence that shows the value.

A check takes what JSON gave and returns what the record holds, or raises :class:`Wrong`. Everything is bounded, so
that a hostile record can neither be large nor name an address that nobody can be reached at.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

Check = Callable[[object], object]

_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NUMERIC: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_SHOWN_CHARS: Final = 60


class Wrong(ValueError):
    """A value that a record cannot hold; the message is a sentence without its subject."""


def shown(value: object) -> str:
    """``value`` for a sentence: short whatever it is, and never a walk through something nested."""
    if isinstance(value, str):
        short = repr(value[:_SHOWN_CHARS])
        return short if len(value) <= _SHOWN_CHARS else f"{short}… ({len(value)} characters)"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)[:_SHOWN_CHARS]
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def whole(low: int, high: int) -> Check:
    """An integer within ``low … high``; a boolean or a float is none."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Wrong(f"{shown(value)} must be a whole number from {low} to {high}")
        return value

    return check


port: Final = whole(1, 65535)


def text(limit: int, *, empty: bool = False) -> Check:
    """Printable text of at most ``limit`` characters."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not (value or empty):
            raise Wrong(f"{shown(value)} must be {'text' if empty else 'non-empty text'}")
        if len(value) > limit:
            raise Wrong(f"{shown(value)} is longer than {limit} characters")
        if not value.isprintable():
            raise Wrong(f"{shown(value)} has unprintable characters")
        return value

    return check


def name(value: object) -> str:
    """One segment of a key."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in {".", ".."}:
        raise Wrong(f"{shown(value)} must be 1 to 128 of A-Z a-z 0-9 . - _ :")
    return value


def group_name(value: object) -> str:
    """A group's name; empty for an instance without one."""
    return name(value) if value != "" else ""


def one_of(*choices: str) -> Check:
    """Exactly one of ``choices``."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Wrong(f"{shown(value)} must be one of {', '.join(choices)}")
        return value

    return check


def truth(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise Wrong(f"{shown(value)} must be true or false")
    return value


def optional(check: Check) -> Check:
    """null, or what ``check`` takes."""
    return lambda value: None if value is None else check(value)


def many(check: Check, low: int, high: int) -> Check:
    """A list of ``low … high`` different items; kept as a tuple in the same order."""

    def check_all(value: object) -> tuple[object, ...]:
        if not isinstance(value, list | tuple) or not low <= len(value) <= high:
            raise Wrong(f"{shown(value)} must be a list of {low} to {high} items")
        items = tuple(check(item) for item in value)
        if len(items) > 1 and len(set(items)) != len(items):
            raise Wrong(f"{shown(value)} names the same item twice")
        return items

    return check_all


def table(check_key: Check, check_value: Check, high: int) -> Check:
    """An object of at most ``high`` entries."""

    def check(value: object) -> MappingProxyType[object, object]:
        if not isinstance(value, dict) or len(value) > high:
            raise Wrong(f"{shown(value)} must be an object of at most {high} entries")
        return MappingProxyType({check_key(k): check_value(v) for k, v in value.items()})

    return check


def opaque(value: object) -> MappingProxyType[str, object]:
    """Any object; its owner reads it."""
    if not isinstance(value, dict):
        raise Wrong(f"{shown(value)} must be an object")
    return MappingProxyType(value)


def host(value: object) -> str:
    """An IP address or a host name that a peer can connect to: no wildcard, no multicast, no brackets."""
    if not isinstance(value, str) or not 0 < len(value) <= 253:
        raise Wrong(f"{shown(value)} must be an IP address or a host name")
    labels = value.split(".")
    if ":" in value or _NUMERIC.fullmatch(labels[-1]):
        return _address(value)
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise Wrong(f"{shown(value)} must be an IP address or a host name")
    return value


@lru_cache(maxsize=4096)  # addresses repeat: with every change of a record, and among the ranks of a machine
def _address(value: str) -> str:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise Wrong(f"{shown(value)} is no IP address") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    target = mapped or address
    if target.is_unspecified or target.is_multicast or str(target) == "255.255.255.255":
        raise Wrong(f"{shown(value)} is no address a peer can connect to")
    if not value.isprintable():  # an IPv6 scope may hold anything
        raise Wrong(f"{shown(value)} has unprintable characters")
    return value


def url(value: object) -> str:
    """``http(s)://host[:port][/path]`` without credentials, query or fragment."""
    if not isinstance(value, str) or len(value) > 2048 or not value.isprintable() or " " in value:
        raise Wrong(f"{_shown_url(value)} must be a URL")
    return _url(value)


def _shown_url(value: object) -> str:
    """A URL for a sentence; a password somebody put into one is nobody else's business."""
    return "a URL with a user in it" if isinstance(value, str) and "@" in value else shown(value)


@lru_cache(maxsize=4096)
def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        number = parts.port
    except ValueError as wrong:
        raise Wrong(f"{_shown_url(value)} must be a URL: {wrong}") from None
    if parts.scheme not in {"http", "https"} or "@" in parts.netloc or parts.query or parts.fragment:
        raise Wrong(f"{_shown_url(value)} must be http(s)://host:port without credentials, query or fragment")
    if number == 0:
        raise Wrong(f"{_shown_url(value)} has port 0")
    host(parts.hostname)
    return value


@lru_cache(maxsize=4096)
def plain_host(value: str) -> str:
    """One spelling per host: addresses in canonical form without brackets, names in lower case."""
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.lower()
