"""Who could serve a request at all, and every reason why somebody could not. Pure, and remembered where it is the same.

A fleet changes seldom and requests come all the time: for a request that asks for nothing but a model the answer stays
the same until the view changes. Remembering it makes a pick's price independent of what the filter looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from pdcore.router.want import Want, key_of
from pdcore.topology.compat import kinds
from pdcore.topology.instance import Instance
from pdcore.topology.pairing import alike
from pdcore.topology.topology import Topology

Check = Callable[[Instance, Instance], tuple[str, ...]]
"""Every reason against a (prefill, decode) pair; the same for all of a kind (:func:`pdcore.topology.compat.kinds`)."""

Reasons = Mapping[str, tuple[str, ...]]


class Doubts(Protocol):
    """Whom something speaks against: ``suspects`` come last (``why`` tells), ``gone`` (and why) not at all."""

    @property
    def suspects(self) -> Set[str]: ...

    @property
    def gone(self) -> Mapping[str, str]: ...

    @property
    def why(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """``pairs`` holds each prefill with the decodes it can pair with; everything is in order of ids.

    ``reasons`` tells why others are not in it, under ``"*"`` which role is missing altogether.
    """

    pairs: Sequence[tuple[Instance, Sequence[Instance]]]
    unified: Sequence[Instance]
    reasons: Reasons

    @cached_property
    def prefills(self) -> Sequence[Instance]:
        """Every prefill that has a decode."""
        return [prefill for prefill, _ in self.pairs]

    @cached_property
    def decodes_of(self) -> Mapping[str, Sequence[Instance]]:
        """With whom each prefill can pair, by its id."""
        return {prefill.instance_id: decodes for prefill, decodes in self.pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``all_fit`` with everybody who can, ``sure`` with those of them whom nobody suspects; the same one if that is all."""

    all_fit: Eligible
    sure: Eligible


@dataclass(frozen=True, slots=True)
class _Known:
    """What an answer depends on besides the model."""

    topology: Topology
    suspects: frozenset[str]
    gone: Mapping[str, str]
    answers: dict[str, Answer] = field(default_factory=dict)

    def holds(self, topology: Topology, doubts: Doubts) -> bool:
        return self.topology is topology and self.gone == doubts.gone and self.suspects == doubts.suspects


class Filter:
    """Asks who is eligible. Mutable state: the answers for the newest view, one per model that was asked for."""

    def __init__(self, check: Check, protocols: Collection[str]) -> None:
        self._check = check
        self._protocols = frozenset(protocols)
        self._known = _Known(Topology.empty(), frozenset(), {})

    def __call__(self, topology: Topology, want: Want, doubts: Doubts) -> Answer:
        if (
            want.excluded
            or want.pinned_prefill is not None
            or want.prefill_dp_rank is not None
            or want.candidate
        ):
            return self._ask(topology, want, doubts)
        if not self._known.holds(topology, doubts):
            self._known = _Known(topology, frozenset(doubts.suspects), dict(doubts.gone))
        found = self._known.answers.get(want.model)
        if found is None:
            found = self._known.answers[want.model] = self._ask(topology, want, doubts)
        return found

    def _ask(self, topology: Topology, want: Want, doubts: Doubts) -> Answer:
        reasons: dict[str, tuple[str, ...]] = {}
        fit = []
        for name, one in sorted(topology.instances.items()):
            why = exclusion(topology, one, want, self._protocols)
            if name in doubts.gone:
                why = (*why, doubts.gone[name])
            if why:
                reasons[name] = why
            else:
                fit.append(one)
        everybody = _eligible(fit, self._check, reasons)
        sure = [one for one in fit if one.instance_id not in doubts.suspects]
        if len(sure) == len(fit):
            return Answer(all_fit=everybody, sure=everybody)
        last = {
            name: (f"is picked last: {doubts.why.get(name, 'it is suspect')}",) for name in doubts.suspects
        }
        certain = _eligible(sure, self._check, {**last, **reasons})
        return Answer(all_fit=everybody, sure=certain)


def exclusion(topology: Topology, one: Instance, want: Want, protocols: Collection[str]) -> tuple[str, ...]:
    """Every reason why ``one`` cannot take part in ``want`` at all; empty if it can."""
    record = one.record
    why: list[str] = []
    if want.model not in record.models:
        why.append(f"does not serve {want.model}")
    if one.draining:
        why.append("is draining")
    if not one.ready:
        why += one.why_not_ready
    why += _against_generation(topology, one, want)
    if record.role != "unified" and record.protocol not in protocols:
        why.append(f"speaks the handshake {record.protocol!r}, which this router does not")
    if want.excluded and key_of(one) in want.excluded:
        why.append(want.excluded[key_of(one)])
    if record.role == "prefill":
        why += _against_prefill(one, want)
    return tuple(why)


def _against_generation(topology: Topology, one: Instance, want: Want) -> list[str]:
    record = one.record
    if want.candidate is not None:
        group, candidate = want.candidate
        if (record.group, record.generation) == want.candidate:
            return []
        return [
            f"is of generation {record.generation} of {record.group!r}, asked is {candidate} of {group!r}"
        ]
    active = topology.active_generation(record.group)
    if record.generation == active:
        return []
    return [f"is of generation {record.generation}, active is {active}"]


def _against_prefill(one: Instance, want: Want) -> list[str]:
    why: list[str] = []
    if want.pinned_prefill not in (None, one.instance_id):
        why.append(f"the request asks for {want.pinned_prefill}")
    if want.prefill_dp_rank is not None and want.prefill_dp_rank >= one.record.dp_size:
        why.append(f"has no dp rank {want.prefill_dp_rank}")
    return why


def _eligible(fit: Sequence[Instance], check: Check, reasons: Reasons) -> Eligible:
    """Of each kind the first is asked for all."""
    kind_of = kinds([one.record for one in fit if one.role != "unified"])
    decodes, paired = alike(fit, "decode", kind_of), set[int]()
    told_of: dict[int, list[str]] = {}
    pairs: list[tuple[Instance, Sequence[Instance]]] = []
    unpaired: dict[str, tuple[str, ...]] = {}
    for prefills in alike(fit, "prefill", kind_of):
        against = [check(prefills[0], some[0]) for some in decodes]
        for place, why in enumerate(against):
            if why:
                told_of.setdefault(place, []).append(_against(prefills, why))
            else:
                paired.add(place)
        matching = [one for some, why in zip(decodes, against, strict=True) if not why for one in some]
        matching.sort(key=_by_id)
        if matching:
            pairs += [(one, matching) for one in prefills]
        elif decodes:
            told = tuple(map(_against, decodes, against))
            unpaired.update((one.instance_id, told) for one in prefills)
    for place, told_by in told_of.items():
        if place not in paired:
            unpaired.update((one.instance_id, tuple(told_by)) for one in decodes[place])
    return Eligible(
        pairs=sorted(pairs, key=lambda pair: _by_id(pair[0])),
        unified=[one for one in fit if one.role == "unified"],
        reasons=MappingProxyType({**reasons, **unpaired, **_missing_roles(fit)}),
    )


def _against(peers: Sequence[Instance], why: tuple[str, ...]) -> str:
    others = f" and {len(peers) - 1} like it" if len(peers) > 1 else ""
    return f"does not pair with {peers[0].instance_id}{others}: {'; '.join(why)}"


def _by_id(one: Instance) -> str:
    return one.instance_id


def _missing_roles(fit: Iterable[Instance]) -> dict[str, tuple[str, ...]]:
    roles = {one.role for one in fit}
    missing = tuple(f"no {role} instance is ready" for role in ("prefill", "decode") if role not in roles)
    return {"*": missing} if missing else {}


_Version = tuple[str, str, int]


def _version(one: Instance) -> _Version:
    return (one.instance_id, one.record.incarnation, one.mod_revision)


class CompatMemo:
    """``compat.check_pair`` remembered per pair of record versions; bounded by forgetting everything."""

    def __init__(self, check: Check, *, entries: int = 65536) -> None:
        self._check = check
        self._entries = entries
        self._known: dict[tuple[_Version, _Version], tuple[str, ...]] = {}

    def __call__(self, prefill: Instance, decode: Instance) -> tuple[str, ...]:
        key = (_version(prefill), _version(decode))
        if key not in self._known:
            if len(self._known) >= self._entries:
                self._known.clear()
            self._known[key] = self._check(prefill, decode)
        return self._known[key]
