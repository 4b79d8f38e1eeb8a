"""The slot's bytes: whole and mine, or "not yet"."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from pdcore.engine.transfer import slot as slots
from pdcore.engine.transfer.slot import SLOT_BYTES, Slot, SlotArray, SlotStatus

pytestmark = pytest.mark.unit

MINE = Slot(seq=41, room=2**63 - 1, token=2**32 - 1, kv_len=8191, status=SlotStatus.DELIVERED, spec=(1, 2, 3))


def _old_contents() -> dict[str, bytes]:
    rng = random.Random(3)
    return {
        "zeros": bytes(SLOT_BYTES),
        "ones": b"\xff" * SLOT_BYTES,
        "noise": rng.randbytes(SLOT_BYTES),
        "the owner before": slots.encode(
            Slot(seq=40, room=7, token=5, kv_len=9, status=SlotStatus.DELIVERED)
        ),
        "same room, another seq": slots.encode(
            Slot(seq=40, room=MINE.room, token=5, kv_len=9, status=SlotStatus.DELIVERED)
        ),
        "same seq, another room": slots.encode(
            Slot(seq=41, room=7, token=5, kv_len=9, status=SlotStatus.DELIVERED)
        ),
    }


@pytest.mark.parametrize("status", SlotStatus)
@pytest.mark.parametrize("spec", [(), (1,), tuple(range(7))])
@pytest.mark.parametrize("has_aux", [False, True])
def test_a_slot_survives_the_round_trip(status: SlotStatus, spec: tuple[int, ...], has_aux: bool) -> None:
    original = Slot(
        seq=2**64 - 1, room=1, token=0, kv_len=2**32 - 1, status=status, spec=spec, has_aux=has_aux
    )
    data = slots.encode(original)
    assert len(data) == SLOT_BYTES
    assert slots.decode(data) == original


def test_the_bytes_are_the_documented_ones() -> None:
    data = slots.encode(MINE)
    fields = struct.unpack("<HHQQIIBB2x7II", data)
    assert fields[:8] == (0x9D01, 0, 41, 2**63 - 1, 2**32 - 1, 8191, 1, 3)
    assert fields[8:15] == (1, 2, 3, 0, 0, 0, 0)
    assert fields[15] == zlib.crc32(data[:60])


@pytest.mark.parametrize("old", _old_contents())
@pytest.mark.parametrize("length", range(SLOT_BYTES + 1))
def test_no_prefix_of_a_write_is_accepted_before_it_is_whole(old: str, length: int) -> None:
    before, new = _old_contents()[old], slots.encode(MINE)
    torn = new[:length] + before[length:]
    accepted = slots.accept(torn, seq=MINE.seq, room=MINE.room)
    assert accepted == (MINE if torn == new else None)


@pytest.mark.parametrize("old", _old_contents())
@pytest.mark.parametrize("length", range(SLOT_BYTES + 1))
def test_no_suffix_of_a_write_is_accepted_before_it_is_whole(old: str, length: int) -> None:
    before, new = _old_contents()[old], slots.encode(MINE)
    torn = before[:length] + new[length:]
    accepted = slots.accept(torn, seq=MINE.seq, room=MINE.room)
    assert accepted == (MINE if torn == new else None)


def test_words_that_land_in_any_order_are_accepted_with_the_last_one_only() -> None:
    rng, new = random.Random(11), slots.encode(MINE)
    for _ in range(200):
        torn, order = bytearray(rng.choice(list(_old_contents().values()))), list(range(0, SLOT_BYTES, 8))
        rng.shuffle(order)
        for at in order:
            assert slots.accept(bytes(torn), seq=MINE.seq, room=MINE.room) is None or bytes(torn) == new
            torn[at : at + 8] = new[at : at + 8]
        assert slots.accept(bytes(torn), seq=MINE.seq, room=MINE.room) == MINE


@pytest.mark.parametrize(("seq", "room"), [(40, MINE.room), (42, MINE.room), (41, 1), (0, 0)])
def test_a_whole_slot_of_somebody_else_is_not_accepted(seq: int, room: int) -> None:
    assert slots.accept(slots.encode(MINE), seq=seq, room=room) is None


def _sealed(**fields: int) -> bytes:
    values = {"magic": 0x9D01, "status": 1, "n_spec": 0} | fields
    body = struct.pack(
        "<HHQQIIBB2x7I", values["magic"], 0, 1, 1, 1, 1, values["status"], values["n_spec"], *[0] * 7
    )
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize("wrong", [{"magic": 0x9D02}, {"status": 0}, {"status": 4}, {"n_spec": 8}])
def test_a_checksum_does_not_excuse_wrong_fields(wrong: dict[str, int]) -> None:
    assert slots.decode(_sealed()) is not None
    assert slots.decode(_sealed(**wrong)) is None


@pytest.mark.parametrize("data", [b"", b"x" * 63, b"x" * 65])
def test_other_lengths_are_no_slot(data: bytes) -> None:
    assert slots.decode(data) is None


@pytest.mark.parametrize(
    "bad",
    [
        Slot(seq=-1, room=1, token=0, kv_len=0, status=SlotStatus.DELIVERED),
        Slot(seq=1, room=2**64, token=0, kv_len=0, status=SlotStatus.DELIVERED),
        Slot(seq=1, room=1, token=2**32, kv_len=0, status=SlotStatus.DELIVERED),
        Slot(seq=1, room=1, token=0, kv_len=0, status=SlotStatus.DELIVERED, spec=(0,) * 8),
    ],
)
def test_what_does_not_fit_is_refused_by_the_writer(bad: Slot) -> None:
    with pytest.raises(ValueError):
        slots.encode(bad)


@pytest.mark.parametrize("more", [0, 40], ids=["few", "many"])
def test_an_array_yields_exactly_the_watched_slots_that_are_whole_and_mine(more: int) -> None:
    memory = bytearray((8 + more) * SLOT_BYTES)
    array = SlotArray(memoryview(memory))
    for index in range(8, 8 + more):
        array.watch(index, seq=index + 1, room=1)
    for index in range(6):
        array.watch(index, seq=index + 1, room=100 + index)
        record = Slot(seq=index + 1, room=100 + index, token=index, kv_len=1, status=SlotStatus.DELIVERED)
        memory[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = slots.encode(record)
    array.forget(1)
    array.watch(2, seq=3, room=999)
    memory[3 * SLOT_BYTES + 63] ^= 1
    assert [(index, slot.token) for index, slot in array.look()] == [(0, 0), (4, 4), (5, 5)]


def test_a_reused_slot_ignores_its_former_owners_late_write() -> None:
    memory = bytearray(SLOT_BYTES)
    array = SlotArray(memoryview(memory))
    array.watch(0, seq=1, room=7)
    array.forget(0)
    array.watch(0, seq=2, room=8)
    memory[:] = slots.encode(Slot(seq=1, room=7, token=9, kv_len=1, status=SlotStatus.DELIVERED))
    assert list(array.look()) == []
    memory[:] = slots.encode(Slot(seq=2, room=8, token=10, kv_len=1, status=SlotStatus.DELIVERED))
    assert [slot.token for _index, slot in array.look()] == [10]


def test_an_array_is_made_of_whole_slots() -> None:
    with pytest.raises(ValueError, match="whole number"):
        SlotArray(memoryview(bytearray(65)))
