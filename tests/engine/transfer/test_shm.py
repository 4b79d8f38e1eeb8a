"""The shm engine by itself: offers, copies, bells, and above all what is a fence and what is not."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from pdcore.engine.transfer import memory
from pdcore.engine.transfer.engine import Announced, Linked, Lost, Rung
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.shm import ShmEngine, stores_are_ordered
from pdcore.engine.transfer.shm_link import Offer, boot_id, encode_offer, open_socket
from pdcore.engine.transfer.shm_receiver import ShmReceiver
from pdcore.engine.transfer.shm_sender import ShmSender
from pdcore.errors import ConfigError, PeerGone, RejectedByPeer, TransferTimeout
from tests.engine.transfer.block_copies import copy_blocks
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration

TOKEN, NBYTES = b"t" * 16, 8192


@pytest.fixture
def sender(runtime_dir: Path) -> Iterator[ShmSender]:
    with ShmEngine().sender(memoryview(bytearray(range(256)) * 32), runtime_dir) as opened:
        yield opened


@pytest.fixture
def region() -> Iterator[Region]:
    with Region(NBYTES) as opened:
        yield opened


@pytest.fixture
def receiver(region: Region) -> Iterator[ShmReceiver]:
    with ShmEngine().receiver(region) as opened:
        yield opened


@pytest.fixture
def linked(sender: ShmSender, receiver: ShmReceiver) -> tuple[ShmSender, ShmReceiver]:
    receiver.connect(sender.endpoint(), TOKEN)
    assert sender.drain() == [Linked(TOKEN, NBYTES)]
    return sender, receiver


def test_a_write_lands_where_it_should_and_returns_visible(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    sender.write(TOKEN, copy_blocks([1, 2, 7], [4, 5, 0], 256), 1)
    expected = bytearray(NBYTES)
    expected[1024:1536] = bytes(range(256)) * 2
    expected[0:256] = bytes(range(256))
    assert receiver._region.memory == expected
    sender.write_bytes(TOKEN, NBYTES - 4, b"slot", 1)
    assert bytes(receiver._region.memory[-4:]) == b"slot"


def test_writes_outside_either_region_are_rejected_whole(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    for source, target in (([0, 31], [0, 32]), ([0, 32], [0, 1])):
        with pytest.raises(RejectedByPeer) as caught:
            sender.write(TOKEN, copy_blocks(source, target, 256), 1)
        assert not caught.value.in_doubt
    for offset in (-1, NBYTES - 3):
        with pytest.raises(RejectedByPeer):
            sender.write_bytes(TOKEN, offset, b"slot", 1)
    assert receiver._region.memory == bytes(NBYTES)


def test_bells_arrive_in_order_and_wake_the_poller(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    assert receiver.drain() == []
    assert sender.ring(TOKEN, 7)
    assert sender.ring(TOKEN, 2**63)
    assert receiver.drain() == [Rung(TOKEN, 7), Rung(TOKEN, 2**63)]


def test_an_announcement_is_no_bell_and_is_left_out_when_the_link_is_full(
    linked: tuple[ShmSender, ShmReceiver],
) -> None:
    sender, receiver = linked
    sender.announce(TOKEN)
    assert sender.ring(TOKEN, 1)
    assert receiver.drain() == [Announced(TOKEN), Rung(TOKEN, 1)]
    while sender.ring(TOKEN, 2):
        pass
    sender.announce(TOKEN)
    receiver.disconnect(TOKEN)
    assert sender.drain() == [Lost(TOKEN)]
    sender.announce(TOKEN)


def test_a_full_link_refuses_the_bell_without_blocking(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    rung = 0
    while sender.ring(TOKEN, rung + 1):
        rung += 1
        assert rung < 100_000
    assert rung > 0
    heard = receiver.drain()
    while more := receiver.drain():
        heard += more
    assert heard == [Rung(TOKEN, seq) for seq in range(1, rung + 1)]
    assert sender.ring(TOKEN, rung + 1)


def test_the_senders_release_is_the_receivers_fence(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    before = _mappings()
    sender.ring(TOKEN, 1)
    sender.release(TOKEN)
    assert _mappings() == before - 1
    assert receiver.drain() == [Rung(TOKEN, 1), Lost(TOKEN)]
    assert receiver.drain() == []
    with pytest.raises(PeerGone):
        sender.write(TOKEN, copy_blocks([0], [0], 256), 1)
    sender.release(TOKEN)


def test_a_half_closed_link_or_an_empty_record_is_no_fence(receiver: ShmReceiver, runtime_dir: Path) -> None:
    """Somebody who can still write has not been fenced, whatever his socket says."""
    path = str(runtime_dir / "peer.sock")
    with open_socket() as listener:
        listener.bind(path)
        listener.listen()
        receiver.connect({"engine": "shm", "boot_id": boot_id(), "socket": path}, TOKEN)
        peer, _ = listener.accept()
        peer.send(b"")
        assert receiver.drain() == []
        peer.shutdown(socket.SHUT_WR)
        assert receiver.drain() == []
        peer.close()
        assert receiver.drain() == [Lost(TOKEN)]


def test_the_receivers_end_is_reported_once_and_writes_stay_harmless(
    linked: tuple[ShmSender, ShmReceiver],
) -> None:
    sender, receiver = linked
    receiver.disconnect(TOKEN)
    assert sender.drain() == [Lost(TOKEN)]
    assert sender.drain() == []
    with pytest.raises(PeerGone):
        sender.write(TOKEN, copy_blocks([0], [0], 256), 1)
    with pytest.raises(PeerGone):
        sender.ring(TOKEN, 1)
    sender.release(TOKEN)


def test_nobody_listening_is_gone_and_a_full_backlog_is_later(
    receiver: ShmReceiver, runtime_dir: Path
) -> None:
    path = str(runtime_dir / "peer.sock")
    endpoint: dict[str, object] = {"engine": "shm", "boot_id": boot_id(), "socket": path}
    with pytest.raises(PeerGone) as gone:
        receiver.connect(endpoint, TOKEN)
    assert not gone.value.in_doubt
    with open_socket() as listener:
        listener.bind(path)
        listener.listen(1)
        with pytest.raises(TransferTimeout) as later:
            _connect_often(receiver, endpoint)
        assert not later.value.in_doubt
    with pytest.raises(PeerGone):
        receiver.connect(endpoint, b"z" * 16)


def _offer(**change: object) -> bytes:
    return (
        encode_offer(Offer(version=1, token=TOKEN, nbytes=NBYTES))
        if not change
        else msgspec.msgpack.encode({"version": 1, "token": TOKEN, "nbytes": NBYTES} | change)
    )


def _unsealed() -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, NBYTES)
    return fd


DESCRIPTORS: dict[str, Callable[[], int]] = {
    "sealed": lambda: memory.create(NBYTES),
    "unsealed": _unsealed,
    "eventfd": lambda: os.eventfd(0),
}
BAD_OFFERS: dict[str, tuple[bytes, int, str]] = {
    "noise": (b"\xff\x00noise", 1, "sealed"),
    "a wrong version": (_offer(version=2), 1, "sealed"),
    "a short token": (_offer(token=b"x"), 1, "sealed"),
    "a wrong size": (_offer(nbytes=NBYTES * 2), 1, "sealed"),
    "a negative size": (_offer(nbytes=-1), 1, "sealed"),
    "no descriptor": (_offer(), 0, "sealed"),
    "two descriptors": (_offer(), 2, "sealed"),
    "twenty descriptors": (_offer(), 20, "sealed"),
    "memory that can shrink": (_offer(), 1, "unsealed"),
    "no memory at all": (_offer(), 1, "eventfd"),
    "a record too long": (_offer() + bytes(8192), 1, "sealed"),
}


@pytest.mark.parametrize("case", BAD_OFFERS)
def test_a_bad_offer_is_closed_counted_and_keeps_no_descriptor(sender: ShmSender, case: str) -> None:
    record, count, kind = BAD_OFFERS[case]
    descriptor = DESCRIPTORS[kind]()
    before = _descriptors()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as attacker:
        attacker.connect(str(sender.endpoint()["socket"]))
        attacker.settimeout(5)
        fds = array.array("i", [descriptor] * count)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else []
        attacker.sendmsg([record], ancillary)
        assert list(sender.drain()) == []
        assert attacker.recv(1) == b""
    os.close(descriptor)
    assert sender.malformed == 1
    assert _descriptors() == before - 1
    with Region(NBYTES) as theirs, ShmEngine().receiver(theirs) as honest:
        honest.connect(sender.endpoint(), TOKEN)
        assert list(sender.drain()) == [Linked(TOKEN, NBYTES)]


def test_a_token_in_use_cannot_be_taken_over(linked: tuple[ShmSender, ShmReceiver]) -> None:
    sender, receiver = linked
    with Region(NBYTES) as theirs, ShmEngine().receiver(theirs) as thief:
        thief.connect(sender.endpoint(), TOKEN)
        assert list(sender.drain()) == []
        assert thief.drain() == [Lost(TOKEN)]
    sender.write(TOKEN, copy_blocks([0], [0], 256), 1)
    assert bytes(receiver._region.memory[:256]) == bytes(range(256))


def test_records_after_the_offer_are_counted_and_change_nothing(
    linked: tuple[ShmSender, ShmReceiver],
) -> None:
    sender, receiver = linked
    fd = memory.create(4096)
    before = _descriptors()
    link = socket.socket(fileno=os.dup(next(iter(receiver._links.values())).fileno()))
    socket.send_fds(link, [b"more"], [fd])
    assert list(sender.drain()) == []
    link.close()
    os.close(fd)
    assert (sender.malformed, _descriptors()) == (1, before - 1)
    assert sender.ring(TOKEN, 1)


def test_connections_that_never_offer_are_bounded(sender: ShmSender) -> None:
    path = str(sender.endpoint()["socket"])
    idle = []
    for _ in range(100):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(path)
        idle.append(connection)
        sender.drain()
    idle[0].settimeout(5)
    assert idle[0].recv(1) == b""
    with Region(NBYTES) as theirs, ShmEngine().receiver(theirs) as honest:
        honest.connect(sender.endpoint(), TOKEN)
        assert eventually_now(sender.drain, 5) == [Linked(TOKEN, NBYTES)]
    for connection in idle:
        connection.close()


def test_the_runtime_directory_must_be_private(runtime_dir: Path) -> None:
    runtime_dir.chmod(0o750)
    with pytest.raises(ConfigError, match="0700"), ShmEngine().sender(memoryview(bytearray(8)), runtime_dir):
        pass


def test_a_path_too_long_for_a_socket_is_said_so(runtime_dir: Path) -> None:
    deep = runtime_dir / ("x" * 100)
    deep.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="too long"), ShmEngine().sender(memoryview(bytearray(8)), deep):
        pass


def test_the_machine_decides_about_bells_unless_told() -> None:
    assert ShmEngine().caps.requires_doorbell is not stores_are_ordered()
    assert ShmEngine(doorbell=True).caps.requires_doorbell
    assert not ShmEngine(doorbell=False).caps.requires_doorbell


def test_sealed_memory_cannot_be_resized_even_by_its_owner() -> None:
    fd = memory.create(4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.close(fd)


def _connect_often(receiver: ShmReceiver, endpoint: dict[str, object]) -> None:
    for turn in range(100):
        receiver.connect(endpoint, turn.to_bytes(16, "big"))


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("pdcore-kv")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
