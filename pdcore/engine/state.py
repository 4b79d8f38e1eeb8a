"""Where one leader stands: the phase of its life, and how many requests it is answering.

Changed by :mod:`pdcore.engine.leader` and read by everything that answers HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pdcore.engine.legs import Phase
from pdcore.registry.leaders import LeaderWord
from pdcore.topology.records import InstanceRecord, Role

_HEALTH: Final[dict[Phase, str]] = {
    "starting": "starting",
    "serving": "ok",
    "draining": "draining",
    "failed": "failed",
}


@dataclass(slots=True, kw_only=True)
class LeaderState:
    """``why`` says what a leader that does not serve is waiting for. ``record`` is what it last wanted registered.

    ``word`` is for the instance's other machines. ``announced``: the keyspace holds a record that says it serves. ``ending``: there is no way back to serving.
    """

    role: Role
    instance_id: str
    incarnation: str
    models: tuple[str, ...]
    phase: Phase = "starting"
    why: str = "the process has just started"
    context_length: int = 0
    kv_tokens: int = 0
    dp_size: int = 1
    record: InstanceRecord | None = None
    word: LeaderWord | None = None
    announced: bool = False
    ending: bool = False
    in_flight: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, phase: Phase, why: str) -> None:
        """Go to ``phase``; a leader that drains in order to end, or failed, never serves again."""
        if not self.ending or phase == "failed":
            self.phase, self.why = phase, why
            self.ending = phase in ("draining", "failed")

    def call_off(self, why: str) -> bool:
        """Drain until called back; False unless it serves."""
        if self.phase != "serving":
            return False
        self.phase, self.why, self.announced = "draining", why, False
        return True

    def call_back(self) -> bool:
        """Serve again after :meth:`call_off`; False when it had not been called off or is to end."""
        if self.phase != "draining" or self.ending:
            return False
        self.phase, self.why = "serving", "its record is on its way to the store"
        return True

    @contextmanager
    def answering(self) -> Iterator[None]:
        """One request is being answered inside the block."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return once nothing is being answered."""
        if self.in_flight:
            await self._idle.wait()

    def health(self, trouble: str | None = None) -> tuple[int, dict[str, object]]:
        """Status and body of ``/health``: 200 while this process has lost no rank and there is no ``trouble``."""
        identity = {"instance_id": self.instance_id, "incarnation": self.incarnation}
        if trouble is not None and self.phase != "failed":
            return 503, {"status": "stuck", "reason": trouble, **identity}
        return 503 if self.phase == "failed" else 200, {"status": _HEALTH[self.phase], **identity}

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Status and body of ``/ready``: 200 only while requests are taken and everybody can know it."""
        if self.phase == "serving" and self.announced:
            return 200, {"ready": True}
        return 503, {"ready": False, "reason": f"{self.phase}: {self.why}"}
