"""The ``tcp`` engine among liars: what is refused, counted and survived, and what a late byte may never do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from pdcore.engine.transfer import sockets, tcp_link
from pdcore.engine.transfer.engine import Linked, Lost, Revoked, Rung
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.tcp import TcpEngine
from pdcore.engine.transfer.tcp_link import Kind, Offer, Outcome
from pdcore.engine.transfer.tcp_receiver import News, TcpReceiver
from pdcore.engine.transfer.tcp_sender import TcpSender
from pdcore.errors import ConfigError, PeerGone, RejectedByPeer, TransferTimeout
from tests.engine.transfer.block_copies import copy_blocks
from tests.engine.transfer.ranks import ShiftedClock
from tests.engine.transfer.tcp_peers import IP, RawPrefill, exactly, frame, raw_decode
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration

TOKEN, OTHER, NBYTES, CANARY = b"t" * 16, b"o" * 16, 1 << 20, 0xC5
RAW_OFFER = Offer(token=OTHER, nbytes=NBYTES, nonce=b"n" * 32)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def sender(runtime_dir: Path, clock: ShiftedClock) -> Iterator[TcpSender]:
    source = memoryview(bytearray(range(256)) * (NBYTES // 256))
    with TcpEngine(bind_ip=IP, timeout_s=0.3, clock=clock).sender(source, runtime_dir) as opened:
        yield opened


@pytest.fixture
def region() -> Iterator[Region]:
    with Region(NBYTES) as opened:
        opened.memory[:] = bytes([CANARY]) * NBYTES
        yield opened


@pytest.fixture
def receiver(region: Region, clock: ShiftedClock) -> Iterator[TcpReceiver]:
    with TcpEngine(bind_ip=IP, clock=clock).receiver(region) as opened:
        yield opened


@pytest.fixture
def liar() -> Iterator[RawPrefill]:
    with RawPrefill() as opened:
        yield opened


def hear(receiver: TcpReceiver, *wanted: News) -> None:
    """Until exactly these came."""
    news: list[News] = []

    def came() -> bool:
        news.extend(receiver.drain())
        assert len(news) <= len(wanted), news
        return news == list(wanted)

    eventually_now(came, 10, f"{wanted} after {news}")


def link(sender: TcpSender, receiver: TcpReceiver, token: bytes = TOKEN, *seqs: int) -> None:
    receiver.connect(sender.endpoint(), token)
    eventually_now(lambda: list(sender.drain()) == [Linked(token, NBYTES)], 10, "the link")
    hear(receiver, Linked(token, NBYTES))
    for seq in seqs or (1,):
        receiver.allow(token, seq)


def still_works(sender: TcpSender, receiver: TcpReceiver, region: Region, token: bytes = TOKEN) -> None:
    """An honest pair is served."""
    link(sender, receiver, token)
    sender.write(token, copy_blocks([1], [2], 256), 1)
    assert bytes(region.memory[512:768]) == bytes(range(256))


def raw_link(liar: RawPrefill, receiver: TcpReceiver, *seqs: int) -> socket.socket:
    """A link of ``receiver`` to a peer that says what the test wants."""
    receiver.connect(liar.endpoint(), TOKEN)
    connection, offer = liar.meet()
    assert (offer.token, offer.nbytes) == (TOKEN, NBYTES)
    hear(receiver, Linked(TOKEN, NBYTES))
    for seq in seqs or (1,):
        receiver.allow(TOKEN, seq)
    return connection


def untouched(region: Region) -> bool:
    return region.memory == bytes([CANARY]) * NBYTES


# Whoever connects to a prefill rank

NOISE = {
    "noise": b"\xff" * 64,
    "an offer too long": tcp_link.OFFER.pack(b"pdko", 1 << 30),
    "an empty offer": tcp_link.OFFER.pack(b"pdko", 0),
    "an unproven offer": tcp_link.OFFER.pack(b"pdko", 64) + bytes(96),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


def test_whoever_offers_nonsense_is_closed_counted_and_logged_once(
    sender: TcpSender, receiver: TcpReceiver, region: Region
) -> None:
    address = (IP, int(str(sender.endpoint()["port"])))
    with structlog.testing.capture_logs() as lines, ExitStack() as stack:
        for noise in NOISE.values():
            stack.enter_context(socket.create_connection(address, 5)).sendall(noise)
        eventually_now(lambda: sender.drain() == [] and sender.malformed == len(NOISE), 5)
    assert [line["peer"] for line in lines if line["event"] == "malformed link"] == [IP]
    still_works(sender, receiver, region)


def test_guests_that_say_nothing_are_few_and_stay_short(
    sender: TcpSender, receiver: TcpReceiver, region: Region, clock: ShiftedClock
) -> None:
    address = (IP, int(str(sender.endpoint()["port"])))
    idle = []
    for _ in range(70):
        idle.append(socket.create_connection(address, 5))
        sender.drain()
    eventually_now(lambda: sender.drain() == [] and sender.malformed == 6, 5, "the oldest closed")
    still_works(sender, receiver, region)
    clock.shift_s += sockets.LINK_S
    sender.drain()
    assert sender.malformed == 70
    for connection in idle:
        connection.close()


def test_a_recorded_offer_links_nobody(sender: TcpSender) -> None:
    where = tcp_link.read_endpoint(sender.endpoint(), "tcp")
    key = tcp_link.link_key(where.key, b"")
    recorded = tcp_link.offer_frame(RAW_OFFER, b"an older greeting's nonce".ljust(32), key)
    with socket.create_connection((IP, where.port), 5) as attacker:
        attacker.sendall(recorded)
        eventually_now(lambda: sender.drain() == [] and sender.malformed == 1, 5)


def test_another_secret_links_nobody(runtime_dir: Path, sender: TcpSender, region: Region) -> None:
    with TcpEngine(bind_ip=IP, secret=b"another").receiver(region) as stranger:
        stranger.connect(sender.endpoint(), TOKEN)
        eventually_now(lambda: sender.drain() == [] and sender.malformed == 1, 5)
        [lost] = eventually_now(stranger.drain, 5)
        assert lost == Lost(TOKEN)
        assert lost.why == "cannot be reached: it refused the link"


def test_a_token_in_use_cannot_be_taken_over(
    sender: TcpSender, receiver: TcpReceiver, region: Region
) -> None:
    link(sender, receiver, OTHER)
    with pytest.raises(EOFError):
        raw_decode(sender.endpoint(), RAW_OFFER, sender.drain)
    sender.write(OTHER, copy_blocks([1], [2], 256), 1)
    assert bytes(region.memory[512:768]) == bytes(range(256))


def test_a_decode_rank_that_never_confirms_leaves_doubt_about_what_was_sent(
    sender: TcpSender, receiver: TcpReceiver, region: Region
) -> None:
    with raw_decode(sender.endpoint(), RAW_OFFER, sender.drain):
        results: list[Exception] = []

        def write() -> None:
            with pytest.raises((TransferTimeout, PeerGone)) as caught:
                sender.write(OTHER, copy_blocks([0], [0], 256), 1)
            results.append(caught.value)

        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(10)
        doubts = [error.in_doubt for error in results]  # type: ignore[attr-defined]
        assert sorted(doubts) == [False, False, True], "only the one that had its turn sent anything"
        eventually_now(lambda: Lost(OTHER) in sender.drain(), 5, "the loss")
        with pytest.raises(PeerGone) as gone:
            sender.write(OTHER, copy_blocks([0], [0], 256), 1)
        assert not gone.value.in_doubt
        sender.release(OTHER)
    still_works(sender, receiver, region)


@pytest.mark.parametrize(
    "answer", [b"\xff" * tcp_link.ACK.size, tcp_link.ack(Outcome.LANDED, 99)], ids=["noise", "another's"]
)
def test_a_decode_rank_that_answers_nonsense_is_cut_and_counted(sender: TcpSender, answer: bytes) -> None:
    with raw_decode(sender.endpoint(), RAW_OFFER, sender.drain) as decode:
        decode.sendall(answer)
        with pytest.raises(PeerGone) as caught:
            sender.write(OTHER, copy_blocks([0], [0], 256), 1)
        assert (caught.value.in_doubt, sender.malformed) == (True, 1)
        eventually_now(lambda: Lost(OTHER) in sender.drain(), 5, "the loss")


# A prefill rank that lies to decode


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff" * 200,
        tcp_link.HEAD.pack(b"pdkf", 1, 1 << 20, 1 << 30, 1),
        frame([(0, 8)], 1)[:-8] + b"\xff" * 8,
    ],
    ids=["noise", "too many rows", "rows that do not add up"],
)
def test_nonsense_in_place_of_a_frame_cuts_its_sender_and_nobody_else(
    receiver: TcpReceiver, sender: TcpSender, liar: RawPrefill, region: Region, noise: bytes
) -> None:
    link(sender, receiver, OTHER)
    connection = raw_link(liar, receiver)
    connection.sendall(noise)
    hear(receiver, Lost(TOKEN))
    assert receiver.malformed == 1
    assert untouched(region)
    sender.write(OTHER, copy_blocks([1], [2], 256), 1)


@pytest.mark.parametrize(
    "row", [(NBYTES, 1), (NBYTES - 1, 2), (-1, 1), (-(2**63), 8), (2**63 - 1, 8)], ids=str
)
def test_rows_out_of_bounds_are_read_away_whole(
    receiver: TcpReceiver, liar: RawPrefill, region: Region, row: tuple[int, int]
) -> None:
    """What a buggy or lying peer sends is checked here, whatever it checked itself."""
    connection = raw_link(liar, receiver)
    connection.sendall(frame([(0, 4), row], 1) + b"x" * (4 + row[1]))
    assert tcp_link.read_ack(exactly(connection, tcp_link.ACK.size), 1) is Outcome.OUT_OF_BOUNDS
    assert untouched(region)
    connection.sendall(frame([(0, 4)], 1) + b"good")
    assert tcp_link.read_ack(exactly(connection, tcp_link.ACK.size), 1) is Outcome.LANDED
    assert bytes(region.memory[:5]) == b"good" + bytes([CANARY])


def test_a_frame_in_single_bytes_lands(receiver: TcpReceiver, liar: RawPrefill, region: Region) -> None:
    connection = raw_link(liar, receiver)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in frame([(10, 3), (0, 2)], 1, Kind.RECORD) + b"abcde":
        connection.sendall(bytes([byte]))
    assert tcp_link.read_ack(exactly(connection, tcp_link.ACK.size), 1) is Outcome.LANDED
    assert (bytes(region.memory[10:13]), bytes(region.memory[:2])) == (b"abc", b"de")
    hear(receiver, Rung(TOKEN, 1))


def test_what_comes_after_a_revoke_is_read_away_even_in_the_middle_of_a_frame(
    receiver: TcpReceiver, liar: RawPrefill, region: Region
) -> None:
    connection = raw_link(liar, receiver, 1, 2)
    connection.sendall(frame([(0, 4), (8, 4)], 1) + b"bef")
    eventually_now(lambda: bytes(region.memory[:3]) == b"bef", 5, "the first bytes")
    assert receiver.revoke(TOKEN, 1), "nothing is landing while the peer says nothing"
    region.memory[:12] = bytes([CANARY]) * 12  # the blocks are somebody else's now
    connection.sendall(b"after")
    assert tcp_link.read_ack(exactly(connection, tcp_link.ACK.size), 1) is Outcome.REVOKED
    assert untouched(region)
    connection.sendall(frame([(0, 4)], 2) + b"next")
    assert tcp_link.read_ack(exactly(connection, tcp_link.ACK.size), 2) is Outcome.LANDED
    assert bytes(region.memory[:4]) == b"next"


def test_a_revoke_while_bytes_pour_in_is_proven_or_told_and_nothing_lands_after(
    receiver: TcpReceiver, liar: RawPrefill, region: Region
) -> None:
    connection = raw_link(liar, receiver, *range(1, 41))
    connection.settimeout(10)
    payload = b"x" * NBYTES

    def pour() -> None:
        for seq in range(1, 41):
            connection.sendall(frame([(0, NBYTES)], seq) + payload)

    pouring = threading.Thread(target=pour)
    pouring.start()
    for seq in range(1, 41):
        if not receiver.revoke(TOKEN, seq):
            hear(receiver, Revoked(TOKEN, seq))
    region.memory[:] = bytes([CANARY]) * NBYTES
    assert exactly(connection, 40 * tcp_link.ACK.size)
    assert untouched(region)
    pouring.join(10)


def test_a_link_that_is_cut_in_a_frame_is_lost_and_nothing_of_it_lands_later(
    receiver: TcpReceiver, liar: RawPrefill, region: Region
) -> None:
    connection = raw_link(liar, receiver)
    connection.sendall(frame([(0, 4)], 1) + b"be")
    connection.close()
    hear(receiver, Lost(TOKEN))
    assert bytes(region.memory[:4]) == b"be" + bytes([CANARY] * 2)
    assert receiver.revoke(TOKEN, 1)


def test_a_peer_that_never_reads_its_acks_holds_up_nobody_else(
    receiver: TcpReceiver, sender: TcpSender, liar: RawPrefill, region: Region
) -> None:
    connection = raw_link(liar, receiver)
    connection.setblocking(False)
    many = (frame([(0, 1)], 1) + b"x") * 1000

    def is_full() -> bool:
        try:
            return connection.send(many) == 0
        except BlockingIOError:
            return True

    eventually_now(is_full, 20, "a socket that takes no more")
    still_works(sender, receiver, region, OTHER)


def test_a_peer_that_does_not_greet_is_lost_in_time(
    receiver: TcpReceiver, liar: RawPrefill, clock: ShiftedClock
) -> None:
    receiver.connect(liar.endpoint(), TOKEN)
    liar.accept()
    clock.shift_s += sockets.LINK_S
    hear(receiver, Lost(TOKEN))


def test_nobody_listening_is_lost_at_once(receiver: TcpReceiver) -> None:
    with RawPrefill() as closed:
        endpoint = closed.endpoint()
    receiver.connect(endpoint, TOKEN)
    hear(receiver, Lost(TOKEN))


@pytest.mark.parametrize("host", ["localhost", "example.com", "127.0.0.256", "0.0.0.0"])
def test_only_numbers_of_one_machine_are_addresses(receiver: TcpReceiver, host: str) -> None:
    if host == "0.0.0.0":
        with pytest.raises(ConfigError, match=r"not 0\.0\.0\.0"):
            sockets.listen(host)
        return
    with pytest.raises(PeerGone):
        sockets.start_connecting(host, 1)


def test_a_link_that_was_given_up_says_nothing_more(
    receiver: TcpReceiver, sender: TcpSender, region: Region
) -> None:
    link(sender, receiver)
    receiver.disconnect(TOKEN)
    eventually_now(lambda: list(sender.drain()) == [Lost(TOKEN)], 5)
    assert receiver.drain() == []
    with pytest.raises(PeerGone):
        sender.ring(TOKEN, 1)
    sender.release(TOKEN)
    sender.release(TOKEN)


def test_writes_of_many_threads_take_turns_on_a_link(
    receiver: TcpReceiver, sender: TcpSender, region: Region
) -> None:
    link(sender, receiver)
    failures: list[BaseException] = []

    def write(place: int) -> None:
        try:
            for _ in range(10):
                sender.write(TOKEN, copy_blocks([0], [place], 4096), 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert bytes(region.memory[: 4 * 4096]) == bytes(range(256)) * 64
    with pytest.raises(RejectedByPeer):
        sender.write_bytes(TOKEN, NBYTES, b"x", 1)
