"""Frames: what is a message, and what is only counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.greeting import refusal
from pdcore.engine.transfer.plan import RegionShape

pytestmark = pytest.mark.unit

TOKEN = b"0123456789abcdef"
HANDSHAKE: dict[str, Any] = {
    "type": "handshake",
    "token": TOKEN,
    "seq": 1,
    "room": 1,
    "slot": 0,
    "groups": [[0, 1]],
    "prompt_len": 20,
    "remaining_ms": 1000,
}
IDENTITY = wire.RankIdentity(instance_id="d", incarnation="d1")
TO_PREFILL: list[wire.ToPrefill] = [
    wire.Hello(
        token=TOKEN, version=1, decode=IDENTITY, expected_incarnation="p1", layout="abc", blocks=4, slots=2
    ),
    wire.Handshake(
        token=TOKEN, seq=1, room=2**63 - 1, slot=0, groups=((0, 1),), prompt_len=20, remaining_ms=0
    ),
    wire.Query(token=TOKEN, seq=1),
    wire.Abort(token=TOKEN, seq=1, room=1, code="cancelled"),
]
TO_DECODE: list[wire.ToDecode] = [
    wire.Welcome(token=TOKEN),
    wire.Refused(token=TOKEN, message="no"),
    wire.Accepted(token=TOKEN, seq=1),
    wire.Failed(token=TOKEN, seq=1, code="prefill_failed", message="no", drained=True),
    wire.Drained(token=TOKEN, seq=1, in_doubt=True),
]


@pytest.mark.parametrize("message", TO_PREFILL)
def test_messages_to_prefill_survive_the_round_trip_and_mean_nothing_to_decode(
    message: wire.ToPrefill,
) -> None:
    frame = wire.encode(message)
    assert wire.read_to_prefill(frame) == message
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_decode(frame)


@pytest.mark.parametrize("message", TO_DECODE)
def test_messages_to_decode_survive_the_round_trip_and_mean_nothing_to_prefill(
    message: wire.ToDecode,
) -> None:
    frame = wire.encode(message)
    assert wire.read_to_decode(frame) == message
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_prefill(frame)


ROOMS = [0, -1, 2**63, 2**64 - 1, 1.0, True, "7", None, [1], {}]
WRONG: list[tuple[str, Any]] = [
    *(("room", value) for value in ROOMS),
    *(("seq", value) for value in ROOMS),
    ("token", b"short"),
    ("token", TOKEN + b"x"),
    ("token", "0123456789abcdef"),
    ("slot", -1),
    ("slot", 2**31),
    ("slot", True),
    ("groups", []),
    ("groups", [[]]),
    ("groups", [[0], [1]]),
    ("groups", [[-1]]),
    ("groups", [[0.5]]),
    ("groups", [["0"]]),
    ("groups", "ab"),
    ("prompt_len", 0),
    ("prompt_len", 2**31),
    ("remaining_ms", -1),
    ("remaining_ms", 10**12),
    ("type", "goodbye"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_makes_the_frame_malformed(field: str, value: object) -> None:
    assert wire.read_to_prefill(msgspec.msgpack.encode(HANDSHAKE))
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_prefill(msgspec.msgpack.encode(HANDSHAKE | {field: value}))


@pytest.mark.parametrize("field", sorted(HANDSHAKE))
def test_a_missing_field_makes_the_frame_malformed(field: str) -> None:
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_prefill(msgspec.msgpack.encode({k: v for k, v in HANDSHAKE.items() if k != field}))


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x00", b"\xff" * 100, b"\x91" * 5000, b"\xdf\xff\xff\xff\xff", b"\x81\xa1"]
)
def test_noise_is_malformed(frame: bytes) -> None:
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_prefill(frame)


def test_no_cut_of_a_frame_is_a_message() -> None:
    frame = wire.encode(TO_PREFILL[1])
    for length in range(len(frame)):
        with pytest.raises(wire.MalformedFrame):
            wire.read_to_prefill(frame[:length])


def test_a_long_reason_is_cut_to_what_a_notice_carries() -> None:
    text = wire.short("x" * 5000)
    assert len(text) == 1024
    assert wire.read_to_decode(wire.encode(wire.Refused(token=TOKEN, message=text)))


LAYOUT = KvLayout.dense(layers=1, kv_heads=1, head_dim=4, block_size=4, itemsize=4, dtype_name="float32")
ME = wire.RankIdentity(instance_id="p", incarnation="p1")
GOOD = wire.Hello(
    token=TOKEN,
    version=wire.WIRE_VERSION,
    decode=IDENTITY,
    expected_incarnation="p1",
    layout=LAYOUT.fingerprint(),
    blocks=8,
    slots=2,
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"version": 2}, "wire version 1, not 2"),
        ({"expected_incarnation": "p0"}, "incarnation p1, not p0"),
        ({"layout": "other"}, "not other"),
        ({"blocks": 99}, "99 blocks and 2 slots"),
        ({"slots": 3}, "8 blocks and 3 slots"),
    ],
)
def test_a_hello_must_agree_with_prefill_and_with_the_memory_it_came_with(
    change: dict[str, Any], why: str | None
) -> None:
    hello = msgspec.structs.replace(GOOD, **change)
    answer = refusal(hello, ME, LAYOUT, RegionShape(LAYOUT, (8,), 2).nbytes)
    assert answer == why if why is None else why in str(answer)
