"""The foreign ranks of one instance: who registered where, who answers, and who may register next. Pure.

All ranks agree on what an instance shares; while one of them answers, another value is refused. A position belongs to
the address that answers there, and an address to one position. A rank that does not answer any more keeps its place,
to be put back when it does, until its position or its address is registered anew; when none answers, the next
registration starts a new table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pdcore.registry.facade.bodies import Address, RankRegistration, Shared, difference
from pdcore.topology.keys import RankPosition

Outcome = Literal["answers", "refuses", "silent"]

SILENCES: Final = 2
"""A refusal is proof that nobody listens; a silence may be a lost packet."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A registration that contradicts what stands (409)."""

    field: str
    sentence: str


@dataclass(frozen=True, slots=True)
class AskFirst:
    """The position is taken by this address, which has to be asked whether it still answers."""

    address: Address


@dataclass(slots=True)
class _Rank:
    address: Address
    answers: bool = True
    silences: int = 0
    contested: bool = False


class RankTable:
    """Mutable: ``shared`` (what the ranks agree on, None before the first), ``_ranks`` by position."""

    def __init__(self) -> None:
        self.shared: Shared | None = None
        self._ranks: dict[RankPosition, _Rank] = {}

    @property
    def answering(self) -> Mapping[RankPosition, Address]:
        """The ranks that are to be registered."""
        return {position: rank.address for position, rank in sorted(self._ranks.items()) if rank.answers}

    @property
    def addresses(self) -> Mapping[RankPosition, Address]:
        """Every rank to be probed."""
        return {position: rank.address for position, rank in self._ranks.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every position has a rank that answers."""
        return self.shared is not None and len(self.answering) == self.shared.world_size

    def judge(self, rank: RankRegistration) -> Refusal | AskFirst | None:
        """What is against ``rank``; None when it may be accepted."""
        if self.shared is None or not self.answering:
            return None
        differs = difference(self.shared, rank.shared)
        if differs is not None:
            return Refusal(*differs)
        holder = self._holder(rank.address)
        if holder not in (None, rank.position) and self._ranks[holder].answers:
            # A second claim on the address is a reason to believe its first owner when that comes from elsewhere.
            self._ranks[holder].contested = True
            return Refusal("rank_port", f"{rank.address} is rank {holder} already")
        return self._against_incumbent(rank)

    def accept(self, rank: RankRegistration) -> None:
        """``rank`` stands at its position from now on."""
        if not self.answering:
            self.shared, self._ranks = None, {}
        holder = self._holder(rank.address)
        if holder is not None:
            del self._ranks[holder]
        self.shared = _merged(self.shared, rank.shared)
        self._ranks[rank.position] = _Rank(rank.address)

    def probed(self, position: RankPosition, address: Address, outcome: Outcome) -> bool:
        """Note how ``address`` answered; whether who answers has changed. Of no matter when the rank has moved on."""
        rank = self._ranks.get(position)
        if rank is None or rank.address != address:
            return False
        before = rank.answers
        rank.silences = rank.silences + 1 if outcome == "silent" else 0
        if outcome != "silent":
            rank.answers = outcome == "answers"
        elif rank.silences >= SILENCES:
            rank.answers = False
        return rank.answers != before

    def _against_incumbent(self, rank: RankRegistration) -> AskFirst | None:
        held = self._ranks.get(rank.position)
        if held is None or held.address == rank.address or held.contested or not held.answers:
            return None
        return AskFirst(held.address)

    def _holder(self, address: Address) -> RankPosition | None:
        return next((position for position, rank in self._ranks.items() if rank.address == address), None)


def occupied(position: RankPosition, address: Address) -> Refusal:
    """The answer to who registers ``position`` while ``address`` still answers there."""
    return Refusal("rank_ip", f"rank {position} is at {address}, which still answers")


def _merged(known: Shared | None, said: Shared) -> Shared:
    """What one rank leaves unsaid another may have said."""
    return said if known is None or known.max_prefill_tokens is None else known
