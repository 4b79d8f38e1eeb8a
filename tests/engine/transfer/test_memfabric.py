"""What we make of memfabric's two interfaces, on stand-ins with its measured codes, and of the package where it is."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdcore.engine.transfer import memfabric_library
from pdcore.engine.transfer.engine import Linked
from pdcore.engine.transfer.library_receiver import LibraryReceiver
from pdcore.engine.transfer.library_sender import LibrarySender
from pdcore.engine.transfer.memfabric import ALIGNMENT, MemfabricEngine
from pdcore.engine.transfer.memfabric_library import Engine, Package, Terms, parse_version
from pdcore.engine.transfer.memory import Region, address_of, private
from pdcore.errors import ConfigError, PeerGone, RejectedByPeer
from tests.engine.transfer.block_copies import copy_blocks
from tests.support.eventually import eventually_now
from tests.support.fake_ascend import Machine, memfabric

pytestmark = pytest.mark.integration

TOKEN, NBYTES = b"t" * 16, 8192
OLD, NEW = (1, 0, 5), (1, 3, 0)
Make = Callable[..., MemfabricEngine]


@pytest.fixture
def store() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def make(tmp_path: Path, store: str) -> Make:
    def made(version: tuple[int, ...], *, store: str | None = store, driver: bool = True) -> MemfabricEngine:
        terms = Terms(host="127.0.0.1", protocol="sdma", store=store, device=3)
        machine = Machine(tmp_path, driver=driver)
        return MemfabricEngine(terms=terms, load=memfabric(machine, version))

    return made


@pytest.fixture(params=[OLD, NEW], ids=["1.0", "1.3"])
def linked(
    request: pytest.FixtureRequest, make: Make, runtime_dir: Path
) -> Iterator[tuple[LibrarySender, LibraryReceiver, Region]]:
    source = private(NBYTES, ALIGNMENT)
    source[:] = bytes(range(256)) * 32
    with (
        Region(NBYTES, ALIGNMENT) as region,
        make(request.param).receiver(region) as receiver,
        make(request.param).sender(source, runtime_dir) as sender,
    ):
        receiver.connect(sender.endpoint(), TOKEN)
        eventually_now(lambda: list(sender.drain()) == [Linked(TOKEN, NBYTES)], 10, "the link")
        yield sender, receiver, region


Ends = tuple[LibrarySender, LibraryReceiver, Region]


def test_writes_go_where_the_offer_said(linked: Ends) -> None:
    sender, _, region = linked
    sender.write(TOKEN, copy_blocks([1], [2], 256), 1)
    sender.write_bytes(TOKEN, 0, b"slot", 1)
    assert (bytes(region.memory[512:768]), bytes(region.memory[:4])) == (bytes(range(256)), b"slot")
    assert address_of(region.memory) % (2 << 20) == 0
    with pytest.raises(RejectedByPeer):
        sender.write(TOKEN, copy_blocks([0], [32], 256), 1)


def test_a_positive_code_is_a_failure_in_doubt(linked: Ends) -> None:
    sender, receiver, _ = linked
    receiver.allow(TOKEN, 1)
    receiver._engine.close()
    with pytest.raises(PeerGone, match="memfabric could not write") as caught:
        sender.write(TOKEN, copy_blocks([1], [2], 256), 1)
    assert caught.value.in_doubt


def test_sessions_are_named_once_and_are_all_different(make: Make) -> None:
    for version in (OLD, NEW):
        engines = [make(version)._engine("Decode") for _ in range(3)]
        for engine in engines:
            engine.open()
        sessions = [engine.session for engine in engines]
        assert sessions == [engine.session for engine in engines], "the port is another one at every call"
        assert len(set(sessions)) == 3
        assert all(name.startswith("127.0.0.1:") and not name.endswith(":0") for name in sessions)
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("version", [OLD, NEW])
def test_no_driver_is_one_sentence_with_the_librarys_own_words(make: Make, version: tuple[int, ...]) -> None:
    engine = make(version, driver=False)
    with pytest.raises(ConfigError, match=r"answered -1: the current version of ascend driver") as caught:
        engine._engine("Decode").open()
    assert "pdcore doctor ascend" in str(caught.value)


def test_before_1_2_a_store_must_be_named_and_reached(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"--memfabric-store .* memfabric 1\.0\.5 needs a store"):
        make(OLD, store=None)._engine("Decode").open()
    with pytest.raises(ConfigError, match="answered -1"):
        make(OLD, store="tcp://127.0.0.1:9")._engine("Decode").open()
    later = make(NEW, store=None)._engine("Decode")
    later.open()
    later.close()


def test_a_closed_engine_moves_nothing(make: Make) -> None:
    engine = make(NEW)._engine("Prefill")
    for use in (lambda: engine.session, lambda: engine.register(0, 1), lambda: engine.write("x", [], [], [])):
        with pytest.raises(RuntimeError):
            use()
    engine.close()


def test_hosts_are_numeric_ipv4(tmp_path: Path) -> None:
    terms = Terms(host="::1", protocol="sdma", store=None, device=0)
    with pytest.raises(ConfigError, match="IPv4"):
        Engine("Decode", terms, memfabric(Machine(tmp_path), NEW)).open()


def test_versions_are_compared_by_their_numbers() -> None:
    assert [parse_version(text) for text in ("1.0.5", "1.10", "1.2.0rc1", "1.3.0+abc")] == [
        (1, 0, 5),
        (1, 10),
        (1, 2, 0),
        (1, 3, 0),
    ]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ModuleNotFoundError('no')", r"pip install 'pdcore\[ascend\]'"),
        ("raise OSError('libascendcl.so: cannot open')", r"cannot be loaded: libascendcl"),
    ],
)
def test_what_the_package_lacks_is_one_sentence(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memfabric_hybrid.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "memfabric_hybrid", raising=False)
    with pytest.raises(ConfigError, match=says):
        memfabric_library.load()


def test_the_package_itself_refuses_without_a_driver() -> None:
    """Where the extra is installed on a machine without a device."""
    try:
        importlib.metadata.version(memfabric_library.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("memfabric_hybrid is not installed")
    package: Package = memfabric_library.load()
    store = None if package.has_own_stores else "tcp://127.0.0.1:9"
    with pytest.raises(ConfigError, match="memfabric cannot start"):
        Engine("Decode", Terms(host="127.0.0.1", protocol="sdma", store=store, device=0)).open()
