"""A rank's side of hand-offs: it obeys orders and says what happened. Nothing here decides.

A prefill rank's is its :class:`~pdcore.engine.transfer.sending.SendingSession`, a decode rank's its
:class:`~pdcore.engine.transfer.receiving.ReceivingSession`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import zmq

from pdcore.engine.transfer.gauges import SideGauges
from pdcore.engine.transfer.orders import Order, SideEvent

__all__ = ["NoSide", "Side", "SideGauges"]


class Side(Protocol):
    """One rank's transfers. Methods never block."""

    def obey(self, order: Order, now: float) -> None:
        """Do it; what comes of it is an event."""
        ...

    def poll(self, now: float) -> Sequence[SideEvent]:
        """Everything that happened since the last call."""
        ...

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        """What wakes the loop for this side."""
        ...

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable."""
        ...

    def gauges(self) -> SideGauges:
        """Counts of this instant."""
        ...


class NoSide:
    """Unified: nothing is handed off."""

    def obey(self, order: Order, now: float) -> None:
        raise TypeError(f"a unified rank was ordered to {type(order).__name__}")

    def poll(self, now: float) -> Sequence[SideEvent]:
        return ()

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return ()

    def next_wake(self) -> float:
        return math.inf

    def gauges(self) -> SideGauges:
        return SideGauges()
