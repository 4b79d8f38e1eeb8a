"""Bytes that are given out are new ones, however many are asked for at once."""

from __future__ import annotations

from itertools import cycle

import pytest

from pdcore.router.chance import AHEAD_BYTES, Chance, fresh_room
from pdcore.router.fields import MAX_ROOM
from pdcore.router.headers import new_request_id

pytestmark = pytest.mark.unit


def test_no_byte_is_given_out_twice() -> None:
    chance = Chance()
    sizes = cycle((8, 12, 1000, 16, AHEAD_BYTES))
    parts = [chance.take(size) for size, _ in zip(sizes, range(2000), strict=False)]
    assert {len(part) for part in parts} == {8, 12, 1000, 16, AHEAD_BYTES}
    assert len(set(parts)) == len(parts)


def test_rooms_and_request_ids_keep_their_form() -> None:
    rooms = {fresh_room() for _ in range(2000)}
    assert len(rooms) == 2000
    assert all(1 <= room <= MAX_ROOM for room in rooms)
    assert max(rooms) > MAX_ROOM // 2
    ids = {new_request_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(len(one) == 28 and one.startswith("req-") for one in ids)
