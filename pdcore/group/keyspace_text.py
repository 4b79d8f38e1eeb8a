"""The raw keyspace as `etcdctl get --prefix` prints it, shortened so that a person can read it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

FIRST_FIELDS: Final = (
    "role",
    "state",
    "incarnation",
    "models",
    "url",
    "bootstrap_port",
    "rank_ip",
    "rank_port",
    "pid",
)
"""What a reader looks for first, in this order; other fields follow as they come."""


def shortened(listing: str, width: int) -> Iterator[str]:
    """Each key of ``listing`` (lines of key and value in turn) and its value on a line of at most ``width``."""
    lines = listing.splitlines()
    for key, value in zip(lines[::2], lines[1::2], strict=False):
        yield key
        yield f"    {_cut(_telling_first(value), width - 4)}"


def _telling_first(value: str) -> str:
    try:
        document = json.loads(value)
    except ValueError:
        return value
    if not isinstance(document, dict):
        return value
    first = {name: document[name] for name in FIRST_FIELDS if name in document}
    return json.dumps({**first, **document}, ensure_ascii=False)


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    size = f" … ({len(text)} characters)"
    return text[: max(0, width - len(size))] + size
