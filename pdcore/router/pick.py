"""Which instances serve a request: filter, score, pair. Pure: every exclusion and every choice has its reason.

Who can take part is asked in :mod:`pdcore.router.eligible`, who is best by the policies. The compat memo and the load are
values handed in; the same arguments give the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from pdcore.router.eligible import Answer, Check, CompatMemo, Doubts, Eligible, Filter
from pdcore.router.policies.base import Choice, Policy, choose
from pdcore.router.policies.prefix_affinity import dp_rank
from pdcore.router.policies.selection import USUAL, RolePolicies, Selection
from pdcore.router.want import InstanceKey, Load, Want
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology

__all__ = ["NO_DOUBTS", "CompatMemo", "InstanceKey", "Load", "NoPair", "Pick", "Rules", "Want", "pick"]

MOST_TOLD: Final = 32
_NO_REASONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


class Pick(Struct, frozen=True, kw_only=True):
    """The chosen instances. ``prefill`` is None when one unified instance serves the request alone.

    ``choices`` were made in this order; ``excluded`` says of instances that no policy was asked about why not.
    """

    decode: Instance
    prefill: Instance | None
    prefill_dp_rank: int | None
    revision: int
    choices: Sequence[Choice] = ()
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_REASONS)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every instance that gets a leg."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    def at(self, leg: str) -> Instance:
        """The instance that gets ``leg``; a unified one gets either."""
        return self.prefill if leg == "prefill" and self.prefill is not None else self.decode

    @property
    def name(self) -> str:
        """The pair as logs and the ``x-pdcore-pair`` header show it."""
        return ",".join(instance.instance_id for instance in self.instances)

    def explained(self) -> dict[str, object]:
        """Why it is this pair, as JSON-able values: the view, each choice with all its scores, who was left out."""
        return {
            "pair": self.name,
            "revision": self.revision,
            "prefill_dp_rank": self.prefill_dp_rank,
            "choices": [choice.explained() for choice in self.choices],
            "excluded": {name: list(why) for name, why in self.excluded.items() if name != "*"},
        }


class NoPair(Struct, frozen=True, kw_only=True):
    """Nobody can serve it. ``reasons`` by instance id; ``"*"`` when there is no instance to blame."""

    reasons: Mapping[str, tuple[str, ...]]
    revision: int

    def sentence(self) -> str:
        """Everything that is in the way, on one line, bounded."""
        parts = [f"{who}: {'; '.join(why)}" for who, why in self.reasons.items() if who != "*"]
        parts += list(self.reasons.get("*", ()))
        shown = " | ".join(parts[:8])
        return shown if len(parts) <= 8 else f"{shown} | and {len(parts) - 8} more"

    def explained(self) -> dict[str, object]:
        """Why it is nobody, as JSON-able values."""
        return {
            "pair": None,
            "revision": self.revision,
            "missing": list(self.reasons.get("*", ())),
            "excluded": {name: list(why) for name, why in self.reasons.items() if name != "*"},
        }

    def detail(self) -> dict[str, object]:
        """The same for an error's body, bounded."""
        told = {name: list(why) for name, why in self.reasons.items() if name != "*"}
        return {
            "revision": self.revision,
            "missing": list(self.reasons.get("*", ())),
            "excluded": dict(list(told.items())[:MOST_TOLD]),
            "more": max(0, len(told) - MOST_TOLD),
        }


class Rules:
    """What a router picks by: the pair check, the handshake protocols it speaks, the policies of each model."""

    def __init__(self, *, check: Check, protocols: Collection[str], policies: Selection = USUAL) -> None:
        self.policies = policies
        self._filter = Filter(check, protocols)

    def eligible(self, topology: Topology, want: Want, doubts: Doubts) -> Answer:
        """Who can take part in ``want``."""
        return self._filter(topology, want, doubts)


class NoDoubts:
    """Nobody is suspect."""

    suspects: Set[str] = frozenset()
    gone: Mapping[str, str] = MappingProxyType({})
    why: Mapping[str, str] = MappingProxyType({})


NO_DOUBTS: Final = NoDoubts()


def pick(
    topology: Topology, want: Want, load: Load, rules: Rules, doubts: Doubts = NO_DOUBTS
) -> Pick | NoPair:
    """A pair for ``want``, a unified instance when no pair is eligible or it prefers one, or every reason why not.

    Suspects are looked at only when nothing else can take it, and then as few of them as can be.
    """
    asked = _Question(topology, want, load, rules.policies.of(want.model), doubts.suspects)
    answer = rules.eligible(topology, want, doubts)
    found = asked.answer(answer.sure)
    if isinstance(found, NoPair) and answer.all_fit is not answer.sure:
        return asked.answer(answer.all_fit)
    return found


class _Question:
    """One pick under way."""

    __slots__ = ("load", "policies", "suspects", "topology", "want")

    def __init__(
        self, topology: Topology, want: Want, load: Load, policies: RolePolicies, suspects: Set[str]
    ) -> None:
        self.topology = topology
        self.want = want
        self.load = load
        self.policies = policies
        self.suspects = suspects

    def answer(self, eligible: Eligible) -> Pick | NoPair:
        """The best of ``eligible``."""
        can_be_alone = bool(eligible.unified) and not _needs_pair(self.want)
        if eligible.pairs and not (can_be_alone and self.want.prefers_unified):
            return self._pair(eligible)
        if can_be_alone:
            alone = self._choice(self.policies.prefill, eligible.unified, None)
            return self._picked(eligible, None, None, alone)
        return NoPair(reasons=eligible.reasons, revision=self.topology.revision)

    def _pair(self, eligible: Eligible) -> Pick:
        prefill = self._choice(self.policies.prefill, eligible.prefills, None)
        decodes = eligible.decodes_of[prefill.instance.instance_id]
        decode = self._choice(self.policies.decode, decodes, prefill.instance)
        return self._picked(eligible, prefill, _dp_rank(self.want, prefill), decode)

    def _choice(self, policy: Policy, candidates: Sequence[Instance], partner: Instance | None) -> Choice:
        sure = candidates
        if self.suspects:
            sure = [one for one in candidates if one.instance_id not in self.suspects]
        return choose(policy, sure or candidates, self.want, self.load, partner)

    def _picked(
        self, eligible: Eligible, prefill: Choice | None, dp_rank: int | None, decode: Choice
    ) -> Pick:
        return Pick(
            prefill=None if prefill is None else prefill.instance,
            decode=decode.instance,
            prefill_dp_rank=dp_rank,
            revision=self.topology.revision,
            choices=(decode,) if prefill is None else (prefill, decode),
            excluded=eligible.reasons,
        )


def _dp_rank(want: Want, prefill: Choice) -> int | None:
    """Only what was really chosen: the client's rank, the one there is, or the one whose cache holds the conversation.

    None where the engine chooses, and where both sides derive it from the room.
    """
    record = prefill.instance.record
    if want.prefill_dp_rank is not None:
        return want.prefill_dp_rank
    if record.chooses_dp_rank:
        return None
    if record.dp_size == 1:
        return 0
    return None if want.prefix is None else dp_rank(want.prefix, prefill.candidates, prefill.instance)


def _needs_pair(want: Want) -> bool:
    return want.pinned_prefill is not None or want.prefill_dp_rank is not None
