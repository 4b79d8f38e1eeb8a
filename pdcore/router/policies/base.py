"""What a policy is: it gives every candidate a score, and the lowest wins.

Scores are tuples, compared term by term, and the terms have names: that is how a choice can say why it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance

Score = tuple[float, ...]


class Policy(Protocol):
    """Pure: the same arguments give the same scores, in every router."""

    @property
    def name(self) -> str:
        """As the settings have it."""
        ...

    @property
    def terms(self) -> tuple[str, ...]:
        """What the terms of its scores mean."""
        ...

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        """One score for each of ``candidates``, which are in order of their ids.

        ``partner`` is the prefill instance when a decode is chosen for it.
        """
        ...


class Choice(Struct, frozen=True):
    """Who was chosen of whom, and by which scores; there are none where there was no choice."""

    policy: Policy
    candidates: Sequence[Instance]
    scores: Sequence[Score]
    instance: Instance

    def explained(self) -> dict[str, object]:
        """The choice as JSON-able values: each candidate with its score by term."""
        scored = self.scores or [()] * len(self.candidates)
        return {
            "role": self.instance.role,
            "policy": self.policy.name,
            "chosen": self.instance.instance_id,
            "candidates": {
                one.instance_id: dict(zip(self.policy.terms, score, strict=False))
                for one, score in zip(self.candidates, scored, strict=True)
            },
        }


def choose(
    policy: Policy, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None = None
) -> Choice:
    """The candidate with the lowest score, the first of equals. There must be at least one."""
    if len(candidates) == 1:
        return Choice(policy, candidates, (), candidates[0])
    scores = policy.scores(candidates, want, load, partner)
    best = min(range(len(candidates)), key=scores.__getitem__)
    return Choice(policy, candidates, scores, candidates[best])
