"""Hand-offs in parts: arrived when all parts agree, failed with the first, drained with the last."""

from __future__ import annotations

from itertools import permutations

import pytest

from pdcore.engine.transfer.gathering import Gathering, GiveUp, Part
from pdcore.engine.transfer.orders import Arrived, Drained, HandoffFailed, TokenLogprobs
from pdcore.engine.transfer.slot import Slot, SlotStatus

pytestmark = pytest.mark.unit

LOGPROBS = TokenLogprobs(logprob=-0.5)
ARRIVED = Arrived(handoff=7, first_token=42, kv_len=20)


def part(token: int = 42, kv_len: int = 20, aux: TokenLogprobs | None = None) -> Part:
    return Part(Slot(seq=1, room=7, token=token, kv_len=kv_len, status=SlotStatus.DELIVERED), aux)


def three() -> Gathering:
    gathering = Gathering()
    gathering.open(7, (1, 2, 3))
    return gathering


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_it_arrives_with_its_last_part(order: tuple[int, ...]) -> None:
    gathering = three()
    assert [gathering.delivered(seq, part()) for seq in order] == [[], [], [ARRIVED]]
    assert len(gathering) == 0


def test_the_logprobs_of_any_part_arrive() -> None:
    gathering = three()
    gathering.delivered(1, part())
    gathering.delivered(2, part(aux=LOGPROBS))
    [arrived] = gathering.delivered(3, part())
    assert arrived == Arrived(handoff=7, first_token=42, kv_len=20, aux=LOGPROBS)


def test_it_fails_with_its_first_part_and_gives_the_others_up() -> None:
    gathering = three()
    gathering.delivered(1, part())
    assert gathering.ended(2, "cancelled", "p: the client left") == [
        HandoffFailed(handoff=7, code="cancelled", message="p: the client left"),
        GiveUp(2, "cancelled"),
        GiveUp(3, "cancelled"),
    ]
    assert gathering.ended(3, "prefill_failed", "another word") == []
    assert gathering.freed(3) == []
    assert gathering.freed(2) == [Drained(handoff=7)]
    assert len(gathering) == 0


@pytest.mark.parametrize(("token", "kv_len"), [(43, 20), (42, 21)])
def test_parts_that_disagree_fail_it(token: int, kv_len: int) -> None:
    gathering = three()
    gathering.delivered(1, part())
    failed, given_up = gathering.delivered(2, part(token, kv_len))
    assert isinstance(failed, HandoffFailed)
    assert f"[(42, 20), ({token}, {kv_len})]" in failed.message
    assert given_up == GiveUp(3, "prefill_failed")
    assert gathering.freed(3) == [Drained(handoff=7)]


def test_the_last_part_to_disagree_fails_and_drains_at_once() -> None:
    gathering = Gathering()
    gathering.open(7, (1, 2))
    gathering.delivered(1, part())
    failed, drained = gathering.delivered(2, part(43))
    assert (isinstance(failed, HandoffFailed), drained) == (True, Drained(handoff=7))


def test_logprobs_that_are_promised_and_not_there_fail_it() -> None:
    gathering = Gathering()
    gathering.open(7, (1,))
    failed, drained = gathering.delivered(1, Part(part().slot, "broken"))
    assert isinstance(failed, HandoffFailed)
    assert "logprobs" in failed.message
    assert drained == Drained(handoff=7)


def test_an_abort_gives_every_part_up_that_is_still_waited_for() -> None:
    gathering = three()
    gathering.delivered(2, part())
    assert gathering.abort(7, "cancelled") == [GiveUp(1, "cancelled"), GiveUp(3, "cancelled")]
    assert gathering.abort(7, "cancelled") == []
    assert (
        gathering.delivered(1, part()) == []
    )  # it came just before: its memory is free, the request is over
    assert gathering.freed(3) == [Drained(handoff=7)]


def test_what_is_unknown_is_ignored() -> None:
    gathering = three()
    assert gathering.abort(8, "cancelled") == []
    assert gathering.ended(9, "cancelled", "x") == []
