"""Which instances serve a request: filter, then choose. Pure: every exclusion has its reason.

The compat memo and the load are values handed in; the same arguments give the same answer. How one of several
candidates is chosen is a :class:`Policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from pdcore.topology.compat import KindOf, kinds
from pdcore.topology.instance import Instance
from pdcore.topology.records import Role
from pdcore.topology.topology import Topology

InstanceKey = tuple[str, str]
"""(instance id, incarnation): an exclusion never outlives the incarnation that earned it."""

Check = Callable[[Instance, Instance], tuple[str, ...]]
"""Every reason against a (prefill, decode) pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a request asks of its pair. ``excluded`` maps instances that refused it to what they said."""

    model: str
    pinned_prefill: str | None = None
    prefill_dp_rank: int | None = None
    excluded: Mapping[InstanceKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The chosen instances. ``prefill`` is None when one unified instance serves the request alone."""

    decode: Instance
    prefill: Instance | None
    prefill_dp_rank: int | None
    revision: int

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every instance that gets a leg."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    @property
    def name(self) -> str:
        """The pair as logs and the ``x-pdcore-pair`` header show it."""
        return ",".join(instance.instance_id for instance in self.instances)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPair:
    """Nobody can serve it. ``reasons`` by instance id; ``"*"`` when there is no instance to blame."""

    reasons: Mapping[str, tuple[str, ...]]
    revision: int

    def sentence(self) -> str:
        """Everything that is in the way, on one line, bounded."""
        parts = [f"{who}: {'; '.join(why)}" for who, why in self.reasons.items() if who != "*"]
        parts += list(self.reasons.get("*", ()))
        shown = " | ".join(parts[:8])
        return shown if len(parts) <= 8 else f"{shown} | and {len(parts) - 8} more"


class Load(Protocol):
    """What this router knows of its own requests, as a policy may read it."""

    def in_flight(self, instance_id: str) -> int:
        """Legs open at the instance."""
        ...

    def last_use(self, *instance_ids: str) -> int:
        """A number that is larger the later this instance, or this pair, was picked; 0 for never."""
        ...


class Policy(Protocol):
    """Chooses one of at least one candidates. ``partner`` is the prefill when a decode is chosen."""

    def __call__(self, candidates: Sequence[Instance], load: Load, partner: Instance | None) -> Instance: ...


def least_in_flight(candidates: Sequence[Instance], load: Load, partner: Instance | None) -> Instance:
    """The fewest open legs; among equals whoever waited longest, for a decode first counted with its partner.

    The pair's own turn comes before the decode's: otherwise two equal rings of instances stay locked step in step and
    only some pairs ever occur.
    """

    def rank(one: Instance) -> tuple[int, int, int, str]:
        pair_turn = load.last_use(partner.instance_id, one.instance_id) if partner is not None else 0
        return (load.in_flight(one.instance_id), pair_turn, load.last_use(one.instance_id), one.instance_id)

    return min(candidates, key=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a router picks by: the pair check, the handshake protocols it speaks, a policy per role."""

    check: Check
    protocols: Collection[str]
    prefill_policy: Policy = least_in_flight
    decode_policy: Policy = least_in_flight
    unified_policy: Policy = least_in_flight


class Doubts(Protocol):
    """Whom the network speaks against: ``suspects`` come last, ``gone`` (and why) not at all."""

    @property
    def suspects(self) -> Collection[str]: ...

    @property
    def gone(self) -> Mapping[str, str]: ...


class NoDoubts:
    """Nobody is suspect."""

    suspects: Collection[str] = frozenset()
    gone: Mapping[str, str] = MappingProxyType({})


NO_DOUBTS: Final = NoDoubts()


def pick(
    topology: Topology, want: Want, load: Load, rules: Rules, doubts: Doubts = NO_DOUBTS
) -> Pick | NoPair:
    """A pair for ``want``, a unified instance when no pair is eligible, or every reason why not.

    Suspects are looked at only when nothing else can take it, and then as few of them as can be.
    """
    reasons: dict[str, tuple[str, ...]] = {}
    fit = [
        one for one in topology.instances.values() if not _note(reasons, topology, one, want, rules, doubts)
    ]
    sure = [one for one in fit if one.instance_id not in doubts.suspects]
    if len(sure) < len(fit):
        found = _choose(topology, sure, want, load, rules, dict(reasons))
        if isinstance(found, Pick):
            return found
        rules = _sure_first(rules, doubts.suspects)
    return _choose(topology, fit, want, load, rules, reasons)


def _choose(
    topology: Topology,
    fit: Sequence[Instance],
    want: Want,
    load: Load,
    rules: Rules,
    reasons: dict[str, tuple[str, ...]],
) -> Pick | NoPair:
    partners = _partners(fit, rules, reasons)
    if partners:
        prefill = rules.prefill_policy([one for one, _ in partners], load, None)
        decodes = next(decodes for one, decodes in partners if one is prefill)
        return Pick(
            prefill=prefill,
            decode=rules.decode_policy(decodes, load, prefill),
            prefill_dp_rank=_dp_rank(want, prefill),
            revision=topology.revision,
        )
    unified = [one for one in fit if one.record.role == "unified"]
    if unified and not _needs_pair(want):
        chosen = rules.unified_policy(unified, load, None)
        return Pick(prefill=None, decode=chosen, prefill_dp_rank=None, revision=topology.revision)
    return NoPair(reasons=_missing_roles(fit, reasons), revision=topology.revision)


def _sure_first(rules: Rules, suspects: Collection[str]) -> Rules:
    """``rules`` whose policies see suspects only where there is nobody else."""

    def narrowed(policy: Policy) -> Policy:
        def choose(candidates: Sequence[Instance], load: Load, partner: Instance | None) -> Instance:
            sure = [one for one in candidates if one.instance_id not in suspects]
            return policy(sure or candidates, load, partner)

        return choose

    return replace(
        rules,
        prefill_policy=narrowed(rules.prefill_policy),
        decode_policy=narrowed(rules.decode_policy),
        unified_policy=narrowed(rules.unified_policy),
    )


def exclusion(topology: Topology, one: Instance, want: Want, rules: Rules) -> tuple[str, ...]:
    """Every reason why ``one`` cannot take part in ``want`` at all; empty if it can."""
    record = one.record
    why: list[str] = []
    if want.model not in record.models:
        why.append(f"does not serve {want.model}")
    if one.draining:
        why.append("is draining")
    if not one.ready:
        why += one.why_not_ready
    active = topology.active_generation(record.group)
    if record.generation != active:
        why.append(f"is of generation {record.generation}, active is {active}")
    if record.role != "unified" and record.protocol not in rules.protocols:
        why.append(f"speaks the handshake {record.protocol!r}, which this router does not")
    if (one.instance_id, record.incarnation) in want.excluded:
        why.append(want.excluded[one.instance_id, record.incarnation])
    if record.role == "prefill":
        why += _against_prefill(one, want)
    return tuple(why)


def _against_prefill(one: Instance, want: Want) -> list[str]:
    why: list[str] = []
    if want.pinned_prefill not in (None, one.instance_id):
        why.append(f"the request asks for {want.pinned_prefill}")
    if want.prefill_dp_rank is not None and want.prefill_dp_rank >= one.record.dp_size:
        why.append(f"has no dp rank {want.prefill_dp_rank}")
    return why


def _note(
    reasons: dict[str, tuple[str, ...]],
    topology: Topology,
    one: Instance,
    want: Want,
    rules: Rules,
    doubts: Doubts,
) -> bool:
    why = exclusion(topology, one, want, rules)
    if one.instance_id in doubts.gone:
        why = (*why, doubts.gone[one.instance_id])
    if why:
        reasons[one.instance_id] = why
    return bool(why)


def _partners(
    fit: Sequence[Instance], rules: Rules, reasons: dict[str, tuple[str, ...]]
) -> list[tuple[Instance, list[Instance]]]:
    """Each prefill that has a decode it can pair with, and those decodes.

    A fleet has many instances and few kinds of them; of each kind the first is asked for all.
    """
    kind_of = kinds([one.record for one in fit if one.record.role != "unified"])
    decodes = _alike(fit, "decode", kind_of)
    partners = []
    for prefills in _alike(fit, "prefill", kind_of):
        against = [rules.check(prefills[0], some[0]) for some in decodes]
        matching = [one for some, why in zip(decodes, against, strict=True) if not why for one in some]
        if matching:
            partners += [(one, matching) for one in prefills]
        elif decodes:
            told = tuple(map(_against, decodes, against))
            reasons.update((one.instance_id, told) for one in prefills)
    return partners


def _alike(fit: Sequence[Instance], role: Role, kind_of: KindOf) -> list[list[Instance]]:
    """The instances of ``role``, those of a kind together."""
    alike: dict[Hashable, list[Instance]] = {}
    for one in fit:
        if one.record.role == role:
            alike.setdefault(kind_of(one.record), []).append(one)
    return list(alike.values())


def _against(decodes: Sequence[Instance], why: tuple[str, ...]) -> str:
    others = f" and {len(decodes) - 1} like it" if len(decodes) > 1 else ""
    return f"does not pair with {decodes[0].instance_id}{others}: {'; '.join(why)}"


def _dp_rank(want: Want, prefill: Instance) -> int | None:
    """Only what was really chosen: the client's rank, or the only one there is unless the engine chooses."""
    if want.prefill_dp_rank is not None:
        return want.prefill_dp_rank
    if prefill.record.chooses_dp_rank:
        return None
    return 0 if prefill.record.dp_size == 1 else None


def _needs_pair(want: Want) -> bool:
    return want.pinned_prefill is not None or want.prefill_dp_rank is not None


def _missing_roles(
    fit: Sequence[Instance], reasons: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    roles = {one.record.role for one in fit}
    missing = tuple(f"no {role} instance is ready" for role in ("prefill", "decode") if role not in roles)
    return {**reasons, "*": missing} if missing else dict(reasons)


_Version = tuple[str, str, int]


def _version(one: Instance) -> _Version:
    return (one.instance_id, one.record.incarnation, one.mod_revision)


class CompatMemo:
    """``compat.check_pair`` remembered per pair of record versions; bounded by forgetting everything."""

    def __init__(
        self, check: Callable[[Instance, Instance], tuple[str, ...]], *, entries: int = 65536
    ) -> None:
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
