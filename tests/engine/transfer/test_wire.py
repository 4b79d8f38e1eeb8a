"""Frames: what is a message, and what is only counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.greeting import Met, greet, other_version
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes
from pdcore.engine.transfer.plan import RegionShape

pytestmark = pytest.mark.unit

TOKEN = b"0123456789abcdef"
LAYOUT = KvLayout.dense(layers=1, kv_heads=2, head_dim=4, block_size=4, itemsize=4, dtype_name="float32")
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
        token=TOKEN,
        version=wire.WIRE_VERSION,
        decode=IDENTITY,
        cp_size=1,
        tp_size=2,
        expected_incarnation="p1",
        layout=LAYOUT,
        blocks=(4,),
        slots=2,
        probes=0,
    ),
    wire.Handshake(
        token=TOKEN, seq=1, room=2**63 - 1, slot=0, groups=((0, 1),), prompt_len=20, remaining_ms=0
    ),
    wire.Beat(token=TOKEN, seqs=()),
    wire.Beat(token=TOKEN, seqs=(1, 2**63 - 1)),
    wire.Probe(token=TOKEN, seq=3, probe=7),
    wire.Abort(token=TOKEN, seq=1, room=1, code="cancelled"),
]
TO_DECODE: list[wire.ToDecode] = [
    wire.Welcome(token=TOKEN),
    wire.Refused(token=TOKEN, message="no"),
    wire.Accepted(token=TOKEN, seq=1),
    wire.Alive(token=TOKEN),
    wire.ProbeFailed(token=TOKEN, seq=3, message="no"),
    wire.Failed(token=TOKEN, seq=1, code="prefill_failed", reason="failed", message="no", drained=True),
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
    ("groups", [[0]] * 65),
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


ME = wire.RankIdentity(instance_id="p", incarnation="p1")
SIZES = GroupSizes(1, 2)
GOOD = wire.Hello(
    token=TOKEN,
    version=wire.WIRE_VERSION,
    decode=IDENTITY,
    cp_size=1,
    tp_size=1,
    expected_incarnation="p1",
    layout=LAYOUT,
    blocks=(8,),
    slots=2,
    probes=1,
)
LINKED = RegionShape(LAYOUT, (8,), 2, 1).nbytes
OTHER_DTYPE = KvLayout.dense(
    layers=1, kv_heads=2, head_dim=4, block_size=8, itemsize=2, dtype_name="bfloat16"
)


def answer(hello: wire.Hello, me: wire.RankIdentity = ME, sizes: GroupSizes = SIZES) -> Met | str:
    source = RegionShape(LAYOUT.shard(sizes.tp, me.tp), (16,))
    return greet(hello, me, LAYOUT, sizes, source, LINKED)


def test_a_hello_that_fits_says_who_writes_where() -> None:
    met = answer(GOOD)
    assert isinstance(met, Met)
    assert (met.pair.destinations, met.pair.rank) == (frozenset({GroupRank(0, 0)}), GroupRank(0, 0))
    assert met.plan.ops([[3]], [[5]], 4).total_bytes == LAYOUT.block_bytes // 2


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"expected_incarnation": "p0"}, ["incarnation p1, not p0"]),
        ({"layout": OTHER_DTYPE}, ["block_size is 4, decode's 8", "bfloat16"]),
        ({"layout": OTHER_DTYPE, "expected_incarnation": "p0"}, ["incarnation p1, not p0", "bfloat16"]),
        ({"blocks": (99,)}, ["(99,) blocks, 2 slots and 1 probe slots"]),
        ({"slots": 3}, ["(8,) blocks, 3 slots"]),
        ({"blocks": (8, 8)}, ["1 groups"]),
        ({"cp_size": 2}, ["cp_size"]),
        ({"tp_size": 3}, ["tp_size", "heads"]),
        ({"decode": msgspec.structs.replace(IDENTITY, tp=1)}, ["rank 0.1 is outside its group of 1 x 1"]),
    ],
)
def test_a_hello_that_does_not_fit_is_told_every_reason(change: dict[str, Any], reasons: list[str]) -> None:
    said = answer(msgspec.structs.replace(GOOD, **change))
    assert isinstance(said, str)
    assert [reason for reason in reasons if reason not in said] == []


def test_a_rank_that_writes_nothing_to_the_one_that_asks_says_so() -> None:
    hello = msgspec.structs.replace(
        GOOD, tp_size=2, blocks=(16,), decode=msgspec.structs.replace(IDENTITY, tp=1)
    )
    linked = RegionShape(LAYOUT.shard(2, 1), (16,), 2, 1).nbytes
    source = RegionShape(LAYOUT.shard(2, 0), (16,))
    assert greet(hello, ME, LAYOUT, SIZES, source, linked) == "rank 0.0 has nothing for decode rank 0.1"


@pytest.mark.parametrize("version", [1, 3])
def test_the_hello_of_another_version_is_refused_by_name_whatever_else_it_says(version: int) -> None:
    frame = msgspec.msgpack.encode({"type": "hello", "token": TOKEN, "version": version, "blocks": "many"})
    greeting = wire.read_to_prefill(frame)
    assert isinstance(greeting, wire.Greeting)
    assert other_version(greeting) == f"it speaks wire version {wire.WIRE_VERSION}, not {version}"


def test_a_broken_hello_of_our_own_version_is_malformed() -> None:
    frame = msgspec.msgpack.encode({"type": "hello", "token": TOKEN, "version": wire.WIRE_VERSION})
    with pytest.raises(wire.MalformedFrame):
        wire.read_to_prefill(frame)
