"""What a prefill rank does while a step is computed: send the prompts that the step completes, before their first token
is known, and tell decode just before it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.clock import Clock
from pdcore.engine.sides import Side
from pdcore.engine.transfer.orders import Announce, SendAhead


class UnderWay:
    """Obeys ``completing`` when the step has got that far; see :class:`~pdcore.engine.model.runner.Progress`."""

    def __init__(self, side: Side, clock: Clock, completing: Sequence[SendAhead]) -> None:
        self._side = side
        self._clock = clock
        self._completing = completing

    def stored(self) -> None:
        """Their KV is in memory."""
        for order in self._completing:
            self._side.obey(order, self._clock.now())

    def layers_done(self) -> None:
        """Their tokens are to be chosen yet."""
        for order in self._completing:
            self._side.obey(Announce(room=order.room), self._clock.now())
