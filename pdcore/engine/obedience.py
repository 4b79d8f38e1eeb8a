"""What orders do to a leader: drain, serve again, end. Level-triggered: the order that stands is what counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.engine.peers import View
from pdcore.engine.state import LeaderState
from pdcore.topology.orders import Meaning, meaning
from pdcore.topology.records import OrderRecord
from pdcore.topology.topology import Topology

WAIT_S: Final = 3600.0
"""How long one wait for news lasts; it is simply begun again."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deeds:
    """What a leader does about its orders. ``tell_draining`` takes whether everything it held is finished."""

    tell_draining: Callable[[bool], None]
    serve_again: Callable[[], Awaitable[None]]
    end: Callable[[str], None]


class Obedience:
    """Follows the order for one incarnation that serves, until cancelled or told to end."""

    def __init__(self, view: View, state: LeaderState, deeds: Deeds) -> None:
        self._view = view
        self._state = state
        self._deeds = deeds

    async def run(self) -> None:
        """Returns after an order to end."""
        doing: Meaning = "serve"
        while doing != "end":
            topology = await self._other_than(doing)
            doing = self._meaning(topology)
            order = topology.orders.get(self._state.instance_id)
            log.info("order obeyed", order=doing, by=_giver(order))
            match doing:
                case "end":
                    self._deeds.end(f"ordered to end by {_giver(order)}")
                case "drain":
                    await self._drain(f"ordered to drain by {_giver(order)}")
                case "serve":
                    if self._state.call_back():
                        await self._deeds.serve_again()

    async def drain_now(self, why: str) -> None:
        """Drain without an order; returns when nothing is held any more, or at once when it does not serve."""
        if self._state.call_off(why):
            self._deeds.tell_draining(False)
            await self._tell_when_idle()

    async def _drain(self, why: str) -> None:
        """Until there is another order."""
        if not self._state.call_off(why):
            return
        self._deeds.tell_draining(False)
        async with running_beside(self._tell_when_idle()):
            await self._other_than("drain")

    async def _tell_when_idle(self) -> None:
        await self._state.wait_idle()
        if self._state.phase == "draining" and not self._state.ending:
            self._deeds.tell_draining(True)

    async def _other_than(self, doing: Meaning) -> Topology:
        while True:
            try:
                return await self._view.wait_until(lambda seen: self._meaning(seen) != doing, WAIT_S)
            except TimeoutError:
                continue

    def _meaning(self, topology: Topology) -> Meaning:
        return meaning(topology.orders.get(self._state.instance_id), self._state.incarnation)


def _giver(order: OrderRecord | None) -> str:
    return "nobody any more" if order is None else order.by or "somebody unnamed"
