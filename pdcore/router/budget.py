"""How long one request may take, in parts. Pure: instants are passed in.

Every expiry names its budget. Both legs of all attempts share the same instants. A stream's whole budget counts until
its first event only; a complete answer has no silence budget, since its engine says nothing while it computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pdcore.config import RouterConfig

BudgetName = Literal["connect", "first byte", "idle", "whole"]
STREAM_LIMIT_S: Final = 86400.0
"""What an engine is told to keep a stream alive for; the router itself sets no end."""


class Deadline(NamedTuple):
    """An instant and the budget it belongs to."""

    at: float
    name: BudgetName
    budget_s: float

    def left_s(self, now: float) -> float:
        return max(0.0, self.at - now)

    def sentence(self) -> str:
        return f"the {self.name} budget of {self.budget_s:g} s is used up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One request's budgets, running since ``started``."""

    started: float
    stream: bool
    first_byte_s: float
    idle_s: float
    whole_s: float

    @classmethod
    def of(cls, config: RouterConfig, *, now: float, stream: bool) -> Budget:
        """The configured budgets, starting ``now``."""
        return cls(
            started=now,
            stream=stream,
            first_byte_s=config.first_byte_timeout_s,
            idle_s=config.idle_timeout_s,
            whole_s=config.request_timeout_s,
        )

    def whole(self) -> Deadline:
        """When a complete answer must be there, or a stream's first event."""
        return Deadline(at=self.started + self.whole_s, name="whole", budget_s=self.whole_s)

    def head(self, now: float) -> Deadline:
        """When a leg sent ``now`` must have answered with its head."""
        first = Deadline(at=now + self.first_byte_s, name="first byte", budget_s=self.first_byte_s)
        return min(first, self.whole(), key=lambda deadline: deadline.at)

    def silence(self, now: float) -> Deadline:
        """When a stream that spoke ``now`` must have spoken again."""
        return Deadline(at=now + self.idle_s, name="idle", budget_s=self.idle_s)

    def remaining_ms(self, now: float) -> int:
        """What the engines are told; at least 1."""
        whole_s = STREAM_LIMIT_S if self.stream else self.whole_s
        return max(1, int((self.started + whole_s - now) * 1000))
