"""Keys, values and a watch's events, from etcd's messages to the contract's values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.store import Change, LeaseId, Revision, Stored

_DELETE: Final = wire.Event.DELETE
NO_KEY: Final = b"\0"
"""As the start of a range the least key, as its end no end at all."""


def key_text(key: bytes) -> str:
    """The key as text; total, because anybody may have written it (what is not UTF-8 is shown escaped)."""
    return key.decode("utf-8", "backslashreplace")


def key_range(prefix: str) -> tuple[bytes, bytes]:
    """The first key of a range over everything that starts with ``prefix``, and the first key behind it."""
    key = prefix.encode()
    stem = key.rstrip(b"\xff")
    return key or NO_KEY, stem[:-1] + bytes([stem[-1] + 1]) if stem else NO_KEY


def stored(kv: wire.KeyValue) -> Stored:
    """One key's value with its revisions and lease."""
    lease = kv.lease
    return Stored(kv.value, kv.mod_revision, kv.create_revision, LeaseId(lease) if lease else None)


def change(event: wire.Event) -> Change:
    """A put or a delete."""
    kv = event.kv  # each look at a message's field makes an object
    return Change(key_text(kv.key), None if event.type == _DELETE else stored(kv))


class RevisionGrouper:
    """Puts events together into whole revisions.

    One answer may hold several revisions, and one revision may be spread over several answers marked ``fragment``.
    Events at or below the last revision handed out are duplicates and dropped, so what comes out strictly grows.
    """

    def __init__(self, after_revision: int) -> None:
        self._done = after_revision
        self._revision = after_revision
        self._changes: list[Change] = []

    def add(self, events: Iterable[wire.Event], *, fragment: bool) -> list[Revision]:
        """The revisions that are complete now; after ``fragment`` the newest one may still grow."""
        complete: list[Revision] = []
        for event in events:
            revision = event.kv.mod_revision
            if revision > self._revision:
                complete += self._flush()
                self._revision = revision
            if self._done < revision == self._revision:
                self._changes.append(change(event))
        return complete if fragment else complete + self._flush()

    def _flush(self) -> list[Revision]:
        if not self._changes:
            return []
        whole = Revision(self._revision, tuple(self._changes))
        self._done, self._changes = self._revision, []
        return [whole]
