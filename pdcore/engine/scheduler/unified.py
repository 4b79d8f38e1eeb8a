"""Both phases in one instance: a request waits for blocks, computes its prompt, generates."""

from __future__ import annotations

from pdcore.engine.scheduler.base import Scheduler


class UnifiedScheduler(Scheduler):
    """The shared scheduler as it is: no peer to wait for."""
