"""From entries back to the view: the same map, and so the same topology, as somebody had who followed live. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdcore.registry.journal.entries import Changes, Entry, Gap, Piece, stored_keys
from pdcore.topology.topology import KeyChange, Stored, Topology, fold, relist


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The view moved on to ``revision``: by ``changes``, or by becoming ``keys``.

    ``lost`` says why what happened before it is not known whole; None when it is. ``time_ms`` never goes back, and is
    None where nobody looked at a clock.
    """

    revision: int
    time_ms: int | None
    changes: tuple[KeyChange, ...] = ()
    keys: Mapping[str, Stored] | None = None
    lost: str | None = None

    def topology(self, before: Topology) -> Topology:
        """The topology after this step."""
        if self.keys is not None:
            return relist(before, self.keys, self.revision)
        return fold(before, self.revision, self.changes)


class Replayer:
    """Takes entries in their order, from a segment's beginning on.

    Mutable state: ``keys`` (the view at ``revision``), the pieces of a snapshot that is not whole yet, and why one is
    needed.
    """

    def __init__(self) -> None:
        self.keys: dict[str, Stored] = {}
        self.revision = 0
        self._time_ms = 0
        self._based = False
        self._lost: str | None = None
        self._pieces: dict[str, Stored] = {}
        self._parts = 0

    @property
    def based(self) -> bool:
        """Whether there was a snapshot yet: only then ``keys`` means something."""
        return self._based

    def take(self, entry: Entry) -> Step | None:
        """What ``entry`` adds; None when that is nothing, or nothing yet."""
        self._time_ms = max(self._time_ms, entry.time_ms)
        match entry:
            case Changes():
                return self._change(entry)
            case Gap():
                self._lost = entry.reason
                return None
            case Piece():
                return self._collect(entry)

    def _change(self, entry: Changes) -> Step | None:
        lost = None
        if self._based and entry.after != self.revision:
            lost = f"the journal misses what happened between {self.revision} and {entry.after}"
        self.revision = entry.revision
        if not self._based:  # its snapshot follows, and holds it
            return None
        changes = entry.key_changes
        for change in changes:
            if change.value is None:
                self.keys.pop(change.key, None)
            else:
                self.keys[change.key] = Stored(change.value, change.mod_revision)
        return Step(revision=entry.revision, time_ms=self._time_ms, changes=changes, lost=lost)

    def _collect(self, piece: Piece) -> Step | None:
        if piece.part == 1:
            self._pieces, self._parts = {}, 0
        self._parts += 1
        self._pieces.update(stored_keys(piece))
        if piece.part != piece.parts or self._parts != piece.parts:
            return None
        return self._rebase(piece.revision, self._pieces)

    def _rebase(self, revision: int, keys: dict[str, Stored]) -> Step | None:
        lost, self._lost = self._lost, None
        if self._based and lost is None:
            lost = self._contradiction(revision, keys)
        known = self._based and lost is None
        self._based, self.revision, self.keys = True, revision, keys
        return None if known else Step(revision=revision, time_ms=self._time_ms, keys=dict(keys), lost=lost)

    def _contradiction(self, revision: int, keys: dict[str, Stored]) -> str | None:
        if revision != self.revision:  # even when its keys say the same: a change may have come and gone
            return f"the journal misses what happened between {self.revision} and {revision}"
        if keys != self.keys:
            return "the journal's own snapshot says something else than its changes"
        return None
