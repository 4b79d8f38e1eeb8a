"""What a decode rank wants of its leader when a prefill instance leaves memory undrained: that one's end, or its own.

An end is ordered in the keyspace, for exactly the incarnation that holds the memory; its registrars carry it out.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine.messages import EndPeer, Restart
from pdcore.errors import StoreError
from pdcore.registry import ordering
from pdcore.registry.lease import retry_after_s
from pdcore.registry.operator import give_order
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Grants them one after the other until cancelled. ``by`` signs orders, ``restart`` ends this instance."""

    store: Store
    keyspace: Keyspace
    clock: Clock
    by: str
    next_wish: Callable[[], Awaitable[EndPeer | Restart]]
    restart: Callable[[str], None]

    async def run(self) -> None:
        """A store that is away delays an order; the rank says when it cannot wait for it any longer."""
        while True:
            match await self.next_wish():
                case Restart(why=why):
                    self.restart(why)
                case EndPeer() as wish:
                    await self._order_end(wish)

    async def _order_end(self, wish: EndPeer) -> None:
        for failures in range(1, 8):
            try:
                ordered = await give_order(
                    self.store,
                    self.keyspace,
                    wish.instance_id,
                    partial(ordering.end_start, incarnation=wish.incarnation, by=self.by),
                )
            except StoreError as error:
                log.warning("end not ordered yet", peer=wish.instance_id, reason=str(error))
                await self.clock.sleep(retry_after_s(failures, random.random()))
            else:
                log.error(
                    "memory left undrained by a prefill instance",
                    peer=wish.instance_id,
                    peer_incarnation=wish.incarnation,
                    age_s=round(wish.age_s, 1),
                    consequence=ordered.decision.sentence,
                )
                return
