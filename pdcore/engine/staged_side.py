"""A decode rank's side of hand-offs whose pool is on a device that its transfer engines do not reach."""

from __future__ import annotations

from collections.abc import Sequence

import zmq
from torch import Tensor

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.sides import Side, SideGauges
from pdcore.engine.transfer.orders import Arrived, Drained, Open, Order, SideEvent
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.staging import Blocks, copy, tensor_over


class StagedSide:
    """A decode rank's side whose region is the mirror of ``pool``. ``poll`` takes as long as its copies, and waits for
    nobody else.

    Mutable: ``_opened``, the block lists of hand-offs that have neither arrived nor drained.
    """

    def __init__(self, inner: Side, shape: RegionShape, mirror: memoryview, pool: Tensor) -> None:
        self._inner = inner
        self._blocks = Blocks(shape)
        self._mirror = tensor_over(mirror)
        self._pool = pool
        self._opened: dict[int, BlockLists] = {}

    def obey(self, order: Order, now: float) -> None:
        """See :class:`Side`."""
        self._inner.obey(order, now)
        if isinstance(order, Open):
            self._opened[order.handoff] = order.blocks

    def poll(self, now: float) -> Sequence[SideEvent]:
        """See :class:`Side`; what has arrived is on the device when its event is told."""
        events = self._inner.poll(now)
        for event in events:
            match event:
                case Arrived(handoff=handoff, kv_len=kv_len):
                    spans = self._blocks.of(self._opened.pop(handoff), kv_len)
                    copy(self._pool, self._mirror, spans)
                case Drained(handoff=handoff):
                    self._opened.pop(handoff, None)
        return events

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        """See :class:`Side`."""
        return self._inner.pollables()

    def next_wake(self) -> float:
        """See :class:`Side`."""
        return self._inner.next_wake()

    def gauges(self) -> SideGauges:
        """See :class:`Side`."""
        return self._inner.gauges()
