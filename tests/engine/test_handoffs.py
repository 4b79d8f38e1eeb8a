from __future__ import annotations

from typing import cast

import pytest

from pdcore.engine.handoffs import DecodeHandoffs
from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.messages import Failed, Step
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.transfer.receiving import Arrived, ReceiveEvent, ReceivingSession
from tests.engine.scheduler.simulation import limits, start

pytestmark = pytest.mark.unit

VOCABULARY = 100


class Session:
    """A receiving session that says what a test tells it to."""

    def __init__(self) -> None:
        self.events: list[ReceiveEvent] = []

    def poll(self, now: float) -> list[ReceiveEvent]:
        events, self.events = self.events, []
        return events


def decode() -> tuple[DecodeHandoffs, DecodeScheduler, Session, BlockPool]:
    pool, session = BlockPool(16), Session()
    scheduler = DecodeScheduler(limits(), pool)
    return DecodeHandoffs(scheduler, cast(ReceivingSession, session), VOCABULARY), scheduler, session, pool


@pytest.mark.parametrize(("token", "fails"), [(0, False), (99, False), (100, True), (2**32 - 1, True)])
def test_a_first_token_the_model_does_not_have_fails_its_request_alone(token: int, fails: bool) -> None:
    handoffs, scheduler, session, pool = decode()
    scheduler.add(start("a", 8, room=1, max_tokens=1), 0)
    (admitted,) = scheduler.plan(0).admit
    scheduler.opened(admitted.request_id, 1)
    session.events = [Arrived(seq=1, room=1, first_token=token, kv_len=8)]
    (said,) = handoffs.poll(0)
    assert isinstance(said, Failed if fails else Step)
    assert pool.free_blocks == pool.total
    assert scheduler.find("a") is None
