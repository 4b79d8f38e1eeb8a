"""Malformed, oversized, replayed and stray messages: counted, answered where an answer is due, never fatal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.memory import Region, on_host
from pdcore.engine.transfer.orders import Arrived, Drained, HandoffFailed, Sent
from pdcore.engine.transfer.sending import Endpoint
from pdcore.engine.transfer.shm import ShmEngine
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import Context, Decode, Prefill, got, has, run

pytestmark = pytest.mark.integration


@pytest.fixture
def prefill(context: Context, runtime_dir: Path) -> Iterator[Prefill]:
    with ranks.sending(context, runtime_dir) as session:
        yield Prefill(session)


@pytest.fixture
def attacker(context: Context, prefill: Prefill) -> Iterator[zmq.Socket[bytes]]:
    endpoint = prefill.session.endpoint
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{endpoint.rank_ip}:{endpoint.rank_port}")
        yield socket


def still_works(context: Context, prefill: Prefill, room: int = 3) -> None:
    """An honest decode rank is served."""
    with ranks.receiving(context) as session:
        decode = Decode(session)
        prefill.expect(room, ranks.tokens_of(room))
        decode.open(room, ranks.peer_at(prefill.session.endpoint), (1, 2))
        run(lambda: has(decode, Arrived) and has(prefill, Sent), prefill, decode)


STRAY = b"s" * 16
NOISE: list[list[bytes]] = [
    [b""],
    [b"\xc1"],
    [b"\xff" * 1000],
    [b"\x91" * 2000],
    [b"\xdf\xff\xff\xff\xff"],
    [b"one", b"two"],
    [b""] * 20,
    [msgspec.msgpack.encode({"type": "handshake"})],
    [msgspec.msgpack.encode({"type": "abort", "token": STRAY, "seq": True, "room": 1, "code": "cancelled"})],
    [msgspec.msgpack.encode({"type": "abort", "token": STRAY, "seq": 1, "room": 2**63, "code": "cancelled"})],
    [wire.encode(wire.Welcome(token=STRAY))],
]


def test_noise_is_counted_and_the_listener_lives(
    context: Context, prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    for frames in NOISE:
        attacker.send_multipart(frames)
    run(lambda: prefill.session.statistics().malformed == len(NOISE), prefill)
    still_works(context, prefill)


def test_messages_without_a_link_are_strays(
    context: Context, prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    hello = wire.Hello(
        token=STRAY,
        version=wire.WIRE_VERSION,
        decode=wire.RankIdentity(instance_id="d", incarnation="d1"),
        cp_size=1,
        tp_size=1,
        expected_incarnation="p1",
        layout=ranks.LAYOUT,
        blocks=(1,),
        slots=1,
        probes=0,
    )
    strays: list[wire.ToPrefill] = [
        hello,
        wire.Handshake(token=STRAY, seq=1, room=3, slot=0, groups=((0, 1),), prompt_len=8, remaining_ms=1000),
        wire.Beat(token=STRAY, seqs=(1,)),
        wire.Probe(token=STRAY, seq=1, probe=0),
        wire.Abort(token=STRAY, seq=1, room=3, code="cancelled"),
    ]
    for message in strays:
        attacker.send(wire.encode(message))
    run(lambda: prefill.session.statistics().strays == len(strays), prefill)
    still_works(context, prefill)


def test_an_oversized_frame_cuts_its_sender_off_and_nobody_else(
    context: Context, prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    attacker.send(bytes(wire.MAX_FRAME_BYTES + 1))
    still_works(context, prefill)
    assert prefill.session.statistics().malformed == 0


def test_a_replayed_handshake_of_a_finished_room_starts_nothing(
    context: Context, prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    with ranks.receiving(context) as session:
        decode = Decode(session)
        prefill.expect(3, ranks.tokens_of(3))
        decode.open(3, ranks.peer_at(prefill.session.endpoint), (1, 2))
        run(lambda: has(decode, Arrived) and has(prefill, Sent), prefill, decode)
        [peer] = session._links.values()
        memory = on_host(session.region_buffer)
        memory[:] = bytes(memory.nbytes)
        replay = wire.Handshake(
            token=peer.token, seq=1, room=3, slot=0, groups=((1, 2),), prompt_len=8, remaining_ms=9000
        )
        attacker.send(wire.encode(replay))
        attacker.setsockopt(zmq.RCVTIMEO, 0)
        answers: list[bytes] = []

        def answered() -> bool:
            try:
                answers.append(attacker.recv())
            except zmq.Again:
                return False
            return True

        run(answered, prefill, decode)
        assert wire.read_to_decode(answers[0]) == wire.Accepted(token=peer.token, seq=1)
        assert not any(memory)
        assert len(got(decode, Arrived)) == 1
        assert prefill.session.statistics().rooms == 0


def test_a_flood_is_taken_in_bounded_turns(prefill: Prefill, attacker: zmq.Socket[bytes]) -> None:
    sent = 0
    while sent < 50_000 and attacker.poll(0, zmq.POLLOUT):
        attacker.send(b"\xc1", zmq.NOBLOCK)
        sent += 1
    prefill.turn()
    assert prefill.session.statistics().malformed <= 256
    run(lambda: prefill.session.statistics().malformed >= min(sent, 300), prefill)


def test_decode_survives_a_prefill_that_talks_nonsense(context: Context, runtime_dir: Path) -> None:
    with (
        ranks.sending(context, runtime_dir) as real,
        context.socket(zmq.ROUTER) as liar,
        ranks.receiving(context) as session,
    ):
        liar.setsockopt(zmq.LINGER, 0)
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        decode = Decode(session)
        endpoint = Endpoint("127.0.0.1", port, real.endpoint.transfer)
        seq = decode.open(3, ranks.peer_at(endpoint), (1, 2))
        decode.turn()
        assert liar.poll(5000)
        route, hello = liar.recv_multipart()
        token = wire.read_to_prefill(hello).token
        lies: list[bytes] = [
            b"",
            b"\xff" * 50,
            hello,
            wire.encode(wire.Accepted(token=token, seq=99)),
            wire.encode(wire.Drained(token=token, seq=99)),
            wire.encode(wire.Drained(token=STRAY, seq=seq)),
        ]
        for lie in lies:
            liar.send_multipart([route, lie])
        liar.send_multipart([route, b"two", b"frames"])
        run(lambda: session.statistics().malformed == 4, decode)
        assert decode.events == []
        assert session.statistics().rooms == 1


def test_a_failure_and_its_last_word_heard_in_one_poll_end_the_hand_off(
    context: Context, runtime_dir: Path
) -> None:
    with (
        ranks.sending(context, runtime_dir) as real,
        context.socket(zmq.ROUTER) as peer,
        ranks.receiving(context) as session,
    ):
        peer.setsockopt(zmq.LINGER, 0)
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        decode = Decode(session)
        seq = decode.open(3, ranks.peer_at(Endpoint("127.0.0.1", port, real.endpoint.transfer)), (1, 2))
        decode.turn()
        route, hello = peer.recv_multipart()
        token = wire.read_to_prefill(hello).token
        for message in (
            wire.Welcome(token=token),
            wire.Failed(
                token=token, seq=seq, code="cancelled", reason="abort", message="gone", drained=False
            ),
            wire.Drained(token=token, seq=seq),
        ):
            peer.send_multipart([route, wire.encode(message)])
        run(lambda: has(decode, Drained), decode)
        assert [event.code for event in got(decode, HandoffFailed)] == ["cancelled"]
        assert session.statistics().slots_used == 0


def test_a_sender_of_nonsense_is_logged_once_and_counted_every_time(
    prefill: Prefill, attacker: zmq.Socket[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(50):
        attacker.send(b"\xc1")
    run(lambda: prefill.session.statistics().malformed == 50, prefill)
    assert capsys.readouterr().out.count("malformed control message") == 1


def test_the_hello_of_another_version_is_refused_by_name(
    prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    token = b"v1 token" * 2
    answers: list[bytes] = []
    with Region(4096) as region, ShmEngine().receiver(region) as receiver:
        receiver.connect(prefill.session.endpoint.transfer, token)
        hello = {"type": "hello", "token": token, "version": 1, "layout": "a fingerprint", "blocks": 7}
        attacker.send(msgspec.msgpack.encode(hello))

        def answered() -> bool:
            answers.extend(attacker.recv() for _ in range(bool(attacker.poll(0))))
            return bool(answers)

        run(answered, prefill)
    why = "it speaks wire version 2, not 1"
    assert wire.read_to_decode(answers[0]) == wire.Refused(token=token, message=why)
    assert prefill.session.statistics().malformed == 0


def test_replayed_probes_and_beats_write_nothing(
    context: Context, prefill: Prefill, attacker: zmq.Socket[bytes]
) -> None:
    """A token is a secret of the two ranks; whoever learnt it can still not make a seq be written twice."""
    with ranks.receiving(context) as session:
        decode = Decode(session)
        prefill.expect(3, ranks.tokens_of(3))
        decode.open(3, ranks.peer_at(prefill.session.endpoint), (1, 2))
        run(lambda: has(decode, Arrived) and has(prefill, Sent), prefill, decode)
        [link] = session._links.values()
        session._region.memory[:] = bytes(session._region.memory.nbytes)
        for message in (
            wire.Probe(token=link.token, seq=1, probe=0),
            wire.Probe(token=link.token, seq=9, probe=2**31 - 1),
            wire.Beat(token=link.token, seqs=(1, 2, 3)),
        ):
            attacker.send(wire.encode(message))
        heard: list[list[bytes]] = []

        def answered() -> bool:
            heard.extend(attacker.recv_multipart() for _ in range(attacker.poll(0)))
            return wire.read_to_decode(heard[0][0]) == wire.Alive(token=link.token) if heard else False

        run(answered, prefill)
        for _ in range(20):
            prefill.turn()
        assert not any(session._region.memory)
