"""When a suspect is asked, and what its answers make of it. Pure.

Answered: kept, or no suspect any more when its keys are all there. Refused, another incarnation, or a rank lost: gone.
Two silences: gone as well, unless the keyspace still shows it. Then its registrar vouches for it, and a process that is
only starved or busy must lose nothing: it is picked last, and gone once it is frozen. What is gone for certain leaves the overlay; who was only silent, or is still in the keyspace, is
asked again, so that nobody stays away for a pause.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from pdcore.registry.overlay.disappearing import newest_revision
from pdcore.registry.overlay.suspect import (
    AGAIN_WITHIN_S,
    FORGOTTEN_AFTER_S,
    FROZEN_AFTER_S,
    SILENCES,
    Evidence,
    InstanceKey,
    Note,
    Outcome,
    Overlay,
    Probe,
    Suspect,
    next_probe_in_s,
    note,
)
from pdcore.topology.topology import Topology

_WHY: Final[dict[Outcome, str]] = {
    "refused": "it refuses connections",
    "other": "another incarnation answers at its address",
    "failed": "it says that it failed",
    "silent": "it does not answer",
}
_ACCUSATION: Final[dict[Evidence, str]] = {
    "connection": "the connection of a request failed",
    "error": "the error of a request names it",
    "silence": "none of its requests hears anything",
}


def accuse(
    overlay: Overlay, topology: Topology, key: InstanceKey, evidence: Evidence, now: float
) -> tuple[Overlay, tuple[Note, ...]]:
    """A request's evidence against an instance: it is probed at once. Until it answers it is picked last, but silence
    alone, which may be work, counts only once a probe meets it too.

    Of an incarnation that is not in ``topology`` nothing is believed; a suspect is only asked sooner.
    """
    name, incarnation = key
    held = overlay.suspects.get(name)
    if held is not None:
        if held.key != key or held.probing or held.standing == "gone":
            return overlay, ()
        return overlay.replaced({name: replace(held, probe_at=min(held.probe_at, now))}), ()
    instance = topology.instances.get(name)
    if instance is None or instance.incarnation != incarnation:
        return overlay, ()
    accused = Suspect(
        instance=instance,
        newest=newest_revision(topology, name),
        cause=evidence,
        standing="asked" if evidence == "silence" else "doubted",
        listed=True,
        why=_ACCUSATION[evidence],
        since=now,
        probe_at=now,
        heard_at=now,
    )
    said = () if accused.standing == "asked" else (note("suspected", accused, accused.why),)
    return overlay.replaced({name: accused}), said


def start_probes(overlay: Overlay, now: float, free: int) -> tuple[Overlay, tuple[Probe, ...]]:
    """The probes that are due, the longest waiting first, at most ``free``; each is answered once."""
    waiting = (one for one in overlay.suspects.values() if not one.probing and one.probe_at <= now)
    due = sorted(waiting, key=lambda one: (one.probe_at, one.key))[: max(0, free)]
    started: dict[str, Suspect | None] = {one.key[0]: replace(one, probing=True) for one in due}
    return overlay.replaced(started), tuple(Probe(key=one.key, url=one.instance.record.url) for one in due)


def next_probe_at(overlay: Overlay) -> float | None:
    """When the next probe is due; None while nobody waits for one."""
    return min((one.probe_at for one in overlay.suspects.values() if not one.probing), default=None)


def answered(
    overlay: Overlay,
    key: InstanceKey,
    outcome: Outcome,
    now: float,
    random: Random,
    *,
    frozen_after_s: float = FROZEN_AFTER_S,
) -> tuple[Overlay, tuple[Note, ...]]:
    """The overlay once a probe of ``key`` ended with ``outcome``; an answer about somebody else is nothing.

    After ``frozen_after_s`` of silence it is told to be frozen: whoever waits for it waits in vain.
    """
    held = overlay.suspects.get(key[0])
    if held is None or held.key != key or not held.probing:
        return overlay, ()
    held, count = replace(held, probing=False), len(overlay.suspects)
    decided: Suspect | None
    match outcome:
        case "late":
            decided, said = replace(held, probe_at=now + random.uniform(0, AGAIN_WITHIN_S)), None
        case "answered":
            decided, said = _passed(held, now, next_probe_in_s(count, random))
        case _:
            pause_s = next_probe_in_s(count, random)
            frozen = outcome == "silent" and now - held.heard_at >= frozen_after_s
            if held.listed and outcome == "silent" and not frozen:
                decided, said = _silent(held, now, pause_s, random)
            else:
                decided, said = _failed(held, outcome, now, pause_s, random, frozen)
    return overlay.replaced({key[0]: decided}), () if said is None else (said,)


def _passed(held: Suspect, now: float, pause_s: float) -> tuple[Suspect | None, Note | None]:
    if held.standing == "asked":
        return None, None
    if held.listed:
        return None, note("answers again" if held.standing == "gone" else "confirmed", held, "it answers")
    kept = replace(held, standing="kept", silences=0, frozen=False, heard_at=now, probe_at=now + pause_s)
    return kept, None if held.standing == "kept" else note("kept", held, "it answers")


def _silent(held: Suspect, now: float, pause_s: float, random: Random) -> tuple[Suspect | None, Note | None]:
    """The keyspace shows it, and its silence may still be work."""
    silences = held.silences + 1
    soon_s = random.uniform(0, AGAIN_WITHIN_S) if silences < SILENCES else pause_s
    after = replace(held, silences=silences, probe_at=now + soon_s)
    if held.standing != "asked":
        return after, None
    doubted = replace(after, standing="doubted")
    return doubted, note("suspected", doubted, held.why)


def _failed(
    held: Suspect, outcome: Outcome, now: float, pause_s: float, random: Random, frozen: bool
) -> tuple[Suspect | None, Note | None]:
    silences = held.silences + 1 if outcome == "silent" else SILENCES
    if silences < SILENCES and not held.listed:
        return replace(held, silences=silences, probe_at=now + random.uniform(0, AGAIN_WITHIN_S)), None
    said = None
    if frozen and not held.frozen:
        said = note("frozen", held, _WHY[outcome])
    elif held.standing != "gone":
        said = note("gone", held, _WHY[outcome])
    if not held.listed and outcome != "silent":
        return None, said
    if not held.listed and now - held.heard_at > FORGOTTEN_AFTER_S:
        return None, note("forgotten", held, "it has not answered for too long")
    gone = replace(
        held, standing="gone", why=_WHY[outcome], silences=silences, frozen=frozen, probe_at=now + pause_s
    )
    return gone, said
