"""How long one request may take, in parts. Pure: instants are passed in.

Every expiry names its budget. Both legs of all attempts share the same instants. A stream's whole budget counts until
its first event only; a complete answer has no silence budget, since its engine says nothing while it computes.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from pdcore.config import RouterConfig

BudgetName = Literal["connect", "first byte", "idle", "whole"]
STREAM_LIMIT_S: Final = 86400.0
"""What an engine is told to keep a stream alive for; the router itself sets no end."""

Deadline = tuple[float, BudgetName]
"""An instant, and the budget that is used up then."""


class Budget(Struct, frozen=True, kw_only=True):
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
        return self.started + self.whole_s, "whole"

    def head(self, now: float) -> Deadline:
        """When a leg sent ``now`` must have answered with its head."""
        at, whole_at = now + self.first_byte_s, self.started + self.whole_s
        return (at, "first byte") if at <= whole_at else (whole_at, "whole")

    def silence(self, now: float) -> Deadline:
        """When a stream that spoke ``now`` must have spoken again."""
        return now + self.idle_s, "idle"

    def sentence(self, name: BudgetName) -> str:
        """That one of these budgets is used up."""
        budget_s = {"first byte": self.first_byte_s, "idle": self.idle_s}.get(name, self.whole_s)
        return f"the {name} budget of {budget_s:g} s is used up"

    def remaining_ms(self, now: float) -> int:
        """What the engines are told; at least 1."""
        whole_s = STREAM_LIMIT_S if self.stream else self.whole_s
        return max(1, int((self.started + whole_s - now) * 1000))
