"""What we add to the mooncake library: import errors as sentences, its return codes, pages in doubt, the fence.

The library itself is held to the engines' contract in test_engines; here one that follows its measured behaviour.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pdcore.engine.transfer import mooncake_library
from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.library_receiver import LibraryReceiver
from pdcore.engine.transfer.library_sender import LibrarySender
from pdcore.engine.transfer.memory import PAGE, Region, address_of, private
from pdcore.engine.transfer.mooncake import MooncakeEngine
from pdcore.engine.transfer.plan import WriteOps
from pdcore.errors import ConfigError, PeerGone, RejectedByPeer, TransferTimeout
from tests.engine.transfer.block_copies import copy_blocks
from tests.engine.transfer.ranks import ShiftedClock
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration

TOKEN, NBYTES = b"t" * 16, 8192


class FakeLibrary:
    """Copies within this process. ``answer`` is what a write returns, after ``takes_s`` of the test's clock."""

    def __init__(self, clock: ShiftedClock) -> None:
        self.clock = clock
        self.memory: dict[int, int] = {}
        self.start_answer = self.answer = 0
        self.takes_s = 0.0

    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int:
        assert (host, metadata, protocol, device) == ("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
        return self.start_answer

    def get_rpc_port(self) -> int:
        return 15001

    def register_memory(self, address: int, nbytes: int) -> int:
        if address in self.memory:
            return -7
        self.memory[address] = nbytes
        return 0

    def unregister_memory(self, address: int) -> int:
        del self.memory[address]
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        assert session == "127.0.0.1:15001"
        self.clock.shift_s += self.takes_s
        for source, target, length in zip(sources, targets, lengths, strict=True):
            for address in (source, target):
                assert any(
                    base <= address and address + length <= base + n for base, n in self.memory.items()
                )
            if self.answer == 0:
                ctypes.memmove(target, source, length)
        return self.answer


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def library(clock: ShiftedClock) -> FakeLibrary:
    return FakeLibrary(clock)


@pytest.fixture
def engine(clock: ShiftedClock, library: FakeLibrary) -> MooncakeEngine:
    return MooncakeEngine(bind_ip="127.0.0.1", clock=clock, load=lambda _protocol, _timeout_s: library)


@pytest.fixture
def region() -> Iterator[Region]:
    with Region(NBYTES) as opened:
        yield opened


@pytest.fixture
def sender(engine: MooncakeEngine, runtime_dir: Path) -> Iterator[LibrarySender]:
    with engine.sender(memoryview(bytearray(range(256)) * 32), runtime_dir) as opened:
        yield opened


@pytest.fixture
def receiver(engine: MooncakeEngine, region: Region) -> Iterator[LibraryReceiver]:
    with engine.receiver(region) as opened:
        yield opened


@pytest.fixture
def linked(sender: LibrarySender, receiver: LibraryReceiver) -> tuple[LibrarySender, LibraryReceiver]:
    receiver.connect(sender.endpoint(), TOKEN)
    eventually_now(lambda: list(sender.drain()) == [Linked(TOKEN, NBYTES)], 10, "the link")
    eventually_now(lambda: receiver.drain() == [Linked(TOKEN, NBYTES)], 10, "the welcome")
    return sender, receiver


def test_writes_go_where_the_offer_said(
    linked: tuple[LibrarySender, LibraryReceiver], region: Region
) -> None:
    sender, _receiver = linked
    sender.write(TOKEN, copy_blocks([1], [2], 256), 1)
    sender.write_bytes(TOKEN, 0, b"slot", 1)
    nothing = np.array([], np.int64)
    sender.write(TOKEN, WriteOps(nothing, nothing, nothing), 1)
    assert (bytes(region.memory[512:768]), bytes(region.memory[:4])) == (bytes(range(256)), b"slot")


@pytest.mark.parametrize("answer", [-1, 1])
@pytest.mark.parametrize(("takes_s", "raised"), [(0.2, PeerGone), (5.0, TransferTimeout)])
def test_every_answer_but_zero_leaves_doubt(
    linked: tuple[LibrarySender, LibraryReceiver],
    library: FakeLibrary,
    answer: int,
    takes_s: float,
    raised: type[PeerGone],
) -> None:
    library.answer, library.takes_s = answer, takes_s
    with pytest.raises(raised) as caught:
        linked[0].write(TOKEN, copy_blocks([1], [2], 256), 1)
    assert caught.value.in_doubt


def test_what_the_library_does_not_check_we_do(linked: tuple[LibrarySender, LibraryReceiver]) -> None:
    sender, _receiver = linked
    for source, target in (([0], [32]), ([32], [0])):
        with pytest.raises(RejectedByPeer):
            sender.write(TOKEN, copy_blocks(source, target, 256), 1)
    for offset, data in ((NBYTES - 3, b"slot"), (-1, b"slot"), (0, bytes(4097))):
        with pytest.raises(RejectedByPeer):
            sender.write_bytes(TOKEN, offset, data, 1)


def test_a_page_in_doubt_is_not_written_again_before_its_link_is_released(
    linked: tuple[LibrarySender, LibraryReceiver], library: FakeLibrary
) -> None:
    sender, receiver = linked
    sender.write_bytes(TOKEN, 0, b"one", 1)
    sender.write_bytes(TOKEN, 0, b"two", 1)
    pages = len(library.memory)
    library.answer = -1
    for _ in range(2):
        with pytest.raises(PeerGone):
            sender.write_bytes(TOKEN, 0, b"x", 1)
    library.answer = 0
    sender.write_bytes(TOKEN, 0, b"y", 1)
    assert len(library.memory) == pages + 2
    receiver.disconnect(TOKEN)
    eventually_now(lambda: list(sender.drain()) == [Lost(TOKEN)], 10)
    sender.release(TOKEN)
    assert len(sender._pages) == 3


def test_the_fence_comes_the_librarys_timeout_after_the_end_of_the_link(
    linked: tuple[LibrarySender, LibraryReceiver], clock: ShiftedClock
) -> None:
    sender, receiver = linked
    assert receiver.revoke(TOKEN, 1), "nothing was asked for yet"
    receiver.allow(TOKEN, 1)
    sender.release(TOKEN)
    eventually_now(lambda: receiver.drain() == [] and bool(receiver._fencing), 10, "the end of the link")
    assert receiver.revoke(TOKEN, 1) is False
    clock.shift_s += 6
    assert receiver.drain() == [Lost(TOKEN)]
    assert receiver.revoke(TOKEN, 1) is True


def test_a_link_on_which_nothing_was_asked_is_lost_at_once(
    linked: tuple[LibrarySender, LibraryReceiver],
) -> None:
    sender, receiver = linked
    sender.release(TOKEN)
    eventually_now(lambda: receiver.drain() == [Lost(TOKEN)], 10)


def test_a_library_that_cannot_start_is_one_sentence(
    engine: MooncakeEngine, library: FakeLibrary, region: Region
) -> None:
    library.start_answer = 1
    with pytest.raises(ConfigError, match="cannot start with protocol tcp"), engine.receiver(region):
        pass
    library.start_answer, library.memory = 0, {ctypes.addressof(ctypes.c_char.from_buffer(region.memory)): 1}
    with pytest.raises(ConfigError, match="cannot register 8192 bytes"), engine.receiver(region):
        pass


MISSING = {
    "the package": (
        "raise ModuleNotFoundError(\"No module named 'mooncake'\")",
        r"pip install 'pdcore\[mooncake\]'",
    ),
    "libibverbs": ("raise ImportError('libibverbs.so.1: cannot open')", "apt-get install .* libibverbs1"),
    "anything else": ("raise ImportError('libnuma.so.1: cannot open')", "cannot be loaded: libnuma"),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_the_library_lacks_is_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, sentence = MISSING[case]
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    (tmp_path / "mooncake" / "engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("mooncake", "mooncake.engine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for variable in (
        "TRANSFER_TIMEOUT",
        "FORCE_TCP",
        "TCP_ENABLE_CONNECTION_POOL",
        "TCP_SLICE_SIZE",
        "LOG_LEVEL",
    ):
        monkeypatch.setenv(f"MC_{variable}", "restored after the test")
    with pytest.raises(ConfigError, match=sentence) as caught:
        mooncake_library.load("tcp", 5)
    assert len(caught.value.problems) == 1
    sys.modules.pop("mooncake", None)


def test_links_between_devices_want_aligned_memory_and_a_deadline_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").touch()
    (tmp_path / "mooncake" / "engine.py").write_text("class TransferEngine: pass")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("mooncake", "mooncake.engine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for variable in ("MC_TRANSFER_TIMEOUT", "MC_LOG_LEVEL", "ASCEND_TRANSFER_TIMEOUT"):
        monkeypatch.setenv(variable, "restored after the test")
    mooncake_library.load("ascend", 7)
    assert os.environ["ASCEND_TRANSFER_TIMEOUT"] == "7000"
    assert MooncakeEngine(bind_ip="127.0.0.1", protocol="ascend").caps.alignment == 2 << 20
    assert MooncakeEngine(bind_ip="127.0.0.1").caps.alignment == PAGE
    for module in ("mooncake", "mooncake.engine"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("nbytes", [1, 4096, (2 << 20) + 1])
def test_memory_begins_where_it_is_told_to(nbytes: int) -> None:
    with Region(nbytes, 2 << 20) as region:
        assert address_of(region.memory) % (2 << 20) == 0
        assert len(region.memory) == region.nbytes == nbytes
        assert not any(region.memory[:4096])
        with pytest.raises(RuntimeError, match="nobody else"):
            _ = region.fd
    assert address_of(private(nbytes, 2 << 20)) % (2 << 20) == 0
    assert len(private(nbytes)) == nbytes
