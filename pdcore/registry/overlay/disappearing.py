"""Which incarnations become suspects, and which stop being it, because the keyspace changed. Pure.

A disappearance is explained by a departure of that incarnation that is newer than every key it had; it makes no
suspect and ends one. Every other disappearance, of the instance's record or of one of its ranks, by a watch or a list,
makes the instance a suspect as a whole: with everything that was last known of it. It ends when the keyspace shows
the instance complete again, of whatever incarnation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Final

from pdcore.registry.overlay.suspect import AGAIN_WITHIN_S, Cause, Note, NoteKind, Overlay, Suspect, note
from pdcore.topology import keys
from pdcore.topology.instance import Instance
from pdcore.topology.records import DepartureRecord, InstanceRecord, Role
from pdcore.topology.topology import Topology

ROLES: Final[tuple[Role, ...]] = ("prefill", "decode", "unified")
SPREAD_S: Final = 0.002
LONGEST_SPREAD_S: Final = 1.0
_FROM_A_FILE: Final = "it is only known from the cached view"


@dataclass(frozen=True, slots=True)
class _Around:
    """What every decision of one step is made with."""

    old: Topology
    new: Topology
    now: float
    spread_s: float
    random: Random
    roles: Collection[Role]

    def probe_at(self) -> float:
        return self.now + self.random.uniform(0, self.spread_s)


def observe(
    overlay: Overlay,
    old: Topology,
    new: Topology,
    now: float,
    random: Random,
    *,
    roles: Collection[Role] = ROLES,
) -> tuple[Overlay, tuple[Note, ...]]:
    """The overlay after the keyspace went from ``old`` to ``new``, and what is worth telling.

    Only instances of ``roles`` become suspects. Observing the same change again changes nothing.
    """
    touched = set(new.instances.changed(old.instances))
    if not overlay.suspects and not any(_lost(old, new, name) for name in touched):
        return overlay, ()  # nearly every event, and each costs every router
    touched.update(name for name in new.departures.changed(old.departures) if name in overlay.suspects)
    spread_s = min(LONGEST_SPREAD_S, AGAIN_WITHIN_S + SPREAD_S * len(touched))
    around = _Around(old, new, now, spread_s, random, roles)
    changes: dict[str, Suspect | None] = {}
    notes: list[Note] = []
    for name in sorted(touched):
        held = overlay.suspects.get(name)
        next_one, said = _step(held, name, around)
        if next_one is not held:
            changes[name] = next_one
        if said is not None:
            notes.append(said)
    after = overlay.replaced(changes)
    if old.store_id != new.store_id:  # another store's revisions start anew: any departure in it is newer
        after = after.replaced({name: replace(one, newest=0) for name, one in after.suspects.items()})
    return after, tuple(notes)


def _lost(old: Topology, new: Topology, name: str) -> bool:
    """Whether the keyspace lacks anything of the incarnation that it showed before."""
    was, now = old.instances.get(name), new.instances.get(name)
    if was is None or (now is not None and now.incarnation != was.incarnation):
        return False
    return _missing(was, now) is not None


def remembered(topology: Topology, now: float, random: Random) -> Overlay:
    """An overlay in which everything of ``topology``, read from a file, is suspect and has to answer first."""
    spread_s = min(LONGEST_SPREAD_S, SPREAD_S * len(topology.instances))
    suspects = {
        name: _suspect(topology, one, "cached", now, now + random.uniform(0, spread_s))
        for name, one in topology.instances.items()
    }
    return Overlay().replaced(suspects)


def _step(held: Suspect | None, name: str, around: _Around) -> tuple[Suspect | None, Note | None]:
    was, now = around.old.instances.get(name), around.new.instances.get(name)
    known = was if held is None else held.instance
    if known is None or known.role not in around.roles:
        return None, None
    if now is not None and now.incarnation != known.incarnation:
        return None, _said(held, "confirmed", "another incarnation took its place")
    missing = _missing(known, now)
    if missing is None:
        return _complete(held, now)
    suspect = held or _suspect(around.old, known, "vanished", around.now, around.probe_at())
    if was is not None and was.incarnation == known.incarnation:
        suspect = replace(suspect, newest=max(suspect.newest, newest_revision(around.old, name)))
    if _is_explained(suspect, around):
        return None, _said(held, "departed", "its departure explains it")
    return _incomplete(held, suspect, now, missing)


def _complete(held: Suspect | None, now: Instance | None) -> tuple[Suspect | None, Note | None]:
    """The keyspace shows all of it. Only what it is accused of without any change of its keys still stands."""
    if held is None or now is None:
        return None, None
    if not held.listed:
        return None, note("confirmed", held, "the keyspace shows it again")
    if now.mod_revision != held.instance.mod_revision or now.ranks != held.instance.ranks:
        return None, note("confirmed", held, "its keys were written again")
    return (held if now == held.instance else replace(held, instance=now)), None


def _incomplete(
    held: Suspect | None, suspect: Suspect, now: Instance | None, missing: str
) -> tuple[Suspect, Note | None]:
    merged = _merged(suspect.instance, now)
    if held is not None and not held.listed:
        return (suspect if merged == suspect.instance else replace(suspect, instance=merged)), None
    fallen = replace(suspect, instance=merged, cause="vanished", listed=False, why=missing)
    return fallen, note("suspected", fallen, missing)


def _suspect(topology: Topology, one: Instance, cause: Cause, now: float, probe_at: float) -> Suspect:
    return Suspect(
        instance=one,
        newest=newest_revision(topology, one.instance_id),
        cause=cause,
        standing="unproven" if cause == "cached" else "doubted",
        listed=False,
        why=_FROM_A_FILE,
        since=now,
        probe_at=probe_at,
        heard_at=now,
    )


def newest_revision(topology: Topology, instance_id: str) -> int:
    """The revision of the newest key that ``instance_id`` consists of, 0 if there is none."""
    part = topology.parts.get(f"instances/{instance_id}", {})
    families = ("instances", "ranks")
    own = (one.mod_revision for one in part.values() if one.name is not None and one.name.family in families)
    return max(own, default=0)


def _is_explained(known: Suspect, around: _Around) -> bool:
    entry = around.new.entry(keys.departure(known.instance.instance_id))
    if entry is None or not isinstance(entry.record, DepartureRecord):
        return False
    if entry.record.incarnation != known.instance.incarnation:
        return False
    if around.old.store_id != around.new.store_id:
        return entry != around.old.entry(keys.departure(known.instance.instance_id))
    return entry.mod_revision > known.newest


def _missing(known: Instance, now: Instance | None) -> str | None:
    """What the keyspace lacks of ``known``; None when nothing."""
    if now is None:
        return "its record vanished unexplained"
    if now.ranks is known.ranks or _layout(now.record) != _layout(known.record):
        return None
    gone = [str(position) for position in known.ranks if position not in now.ranks]
    return f"rank {gone[0]} vanished unexplained ({len(gone)} in all)" if gone else None


def _merged(known: Instance, now: Instance | None) -> Instance:
    """Everything last known: what ``now`` says, and of ``known`` what it lacks."""
    if now is None:
        return known
    ranks = {**known.ranks, **now.ranks}
    return replace(now, ranks=MappingProxyType(dict(sorted(ranks.items()))), uncounted=MappingProxyType({}))


def _layout(record: InstanceRecord) -> tuple[int, int, int]:
    return (record.dp_size, record.cp_size, record.tp_size)


def _said(held: Suspect | None, kind: NoteKind, why: str) -> Note | None:
    """Nobody was told of a suspect that there never was."""
    return None if held is None else note(kind, held, why)
