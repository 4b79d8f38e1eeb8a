"""What every transfer engine promises, shown with a process at each end."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engine.transfer.engine_ends import Pair
from tests.engine.transfer.engine_process import BLOCK, NBYTES, SLOT, TCP_TIMEOUT_S
from tests.support.eventually import eventually_now
from tests.support.namespaces import a_machine_alone, require_namespaces

pytestmark = [pytest.mark.contract, pytest.mark.slow]

BLOCKS = NBYTES // BLOCK
BIG = 16 << 20
CANARY = 0xC5
Row = tuple[int, int, int]

ENGINES = [
    pytest.param("shm", id="shm"),
    pytest.param("tcp", id="tcp"),
    pytest.param("mooncake", id="mooncake", marks=pytest.mark.cluster),
    pytest.param("mooncake-ascend", id="mooncake-ascend", marks=pytest.mark.cluster),
    pytest.param("memfabric-1.0", id="memfabric-1.0", marks=pytest.mark.cluster),
    pytest.param("memfabric-1.3", id="memfabric-1.3", marks=pytest.mark.cluster),
]
ONE_SIDED = ("shm", "mooncake-ascend", "memfabric-1.0", "memfabric-1.3")
"""Engines whose copies need nobody at the other end."""


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def processes(engine: str) -> Iterator[Pair]:
    """Mooncake listens on all interfaces, so it gets a machine that has none but loopback."""
    with ExitStack() as stack:
        runtime_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdx-")))
        prefix: tuple[str, ...] = ()
        if engine == "mooncake":
            if os.environ.get("CI") != "true":
                pytest.importorskip("mooncake.engine", reason="the extra mooncake", exc_type=ImportError)
            require_namespaces()
            prefix = stack.enter_context(a_machine_alone()).run
        if engine == "memfabric-1.0":
            store = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            (runtime_dir / "store").write_text(f"tcp://127.0.0.1:{store.getsockname()[1]}")
        pair = Pair(engine, runtime_dir, prefix)
        stack.callback(pair.close)
        yield pair


@pytest.fixture
def pair(processes: Pair) -> Pair:
    """Both ends alive, every block a canary."""
    processes.restart()
    processes.receiver.ask("fill", CANARY)
    return processes


def rows_of(blocks: list[tuple[int, int]]) -> list[Row]:
    return [(source * BLOCK, target * BLOCK, BLOCK) for source, target in blocks]


def assert_holds(pair: Pair, blocks: list[tuple[int, int]]) -> None:
    """Exactly these blocks changed, each to what its source holds."""
    assert pair.receiver.ask("changed") == sorted(target for _source, target in blocks)
    for source, target in blocks[:: max(1, len(blocks) // 10)]:
        assert pair.receiver.ask("values", target) == [source % 190 + 1]


def test_a_write_that_returned_is_there_and_nothing_else(pair: Pair) -> None:
    token = pair.link(1)
    blocks = [(1, 9), (2, 10), (7, 0)]
    assert "error" not in pair.sender.write(token, rows_of(blocks), 1)
    assert_holds(pair, blocks)
    assert "error" not in pair.sender.ask("write_bytes", token, SLOT, "0102", 1)  # type: ignore[operator]
    assert pair.receiver.ask("values", SLOT // BLOCK) == [1, 2, CANARY]
    pair.unlink(token)


def test_a_list_of_a_thousand_shuffled_blocks_lands_whole(pair: Pair) -> None:
    token = pair.link(1)
    rng = random.Random(1)
    blocks = list(zip(rng.sample(range(BLOCKS), 1000), rng.sample(range(BLOCKS), 1000), strict=True))
    assert "error" not in pair.sender.write(token, rows_of(blocks), 1)
    assert_holds(pair, blocks)
    pair.unlink(token)


def test_a_slot_never_overtakes_the_data_before_it(pair: Pair) -> None:
    token = pair.link(1)
    pair.receiver.ask("fill", 0)
    pair.receiver.tell("watch", 256 << 10, 60)
    pair.sender.ask("pump", token, 256 << 10, 60, 1)
    assert pair.receiver.answer() == 0
    pair.sender.kill()  # its source is not what the other tests expect any more


def test_a_record_is_followed_by_its_bell(pair: Pair) -> None:
    token = pair.link(7)
    assert "error" not in pair.sender.ask("write_bytes", token, SLOT, "aa", 7)  # type: ignore[operator]
    assert pair.sender.ask("ring", token, 7) is True
    eventually_now(lambda: pair.receiver.has_heard("Rung", token, 7), 10, "the bell")
    pair.unlink(token)


@pytest.mark.parametrize(
    "row",
    [
        (0, NBYTES - 1, 2),
        (0, NBYTES, 1),
        (0, -1, 1),
        (NBYTES - 1, 0, 2),
        (-1, 0, 1),
        (0, 0, 0),
        (0, 0, -1),
        (0, 1 << 62, 1 << 62),
    ],
    ids=str,
)
def test_a_list_with_one_row_out_of_bounds_is_rejected_whole(pair: Pair, row: Row) -> None:
    token = pair.link(1)
    result = pair.sender.write(token, [(0, 0, BLOCK), row], 1)
    assert (result["error"], result["in_doubt"]) == ("RejectedByPeer", False)
    assert pair.receiver.ask("changed") == []
    assert "error" not in pair.sender.write(token, rows_of([(3, 3)]), 1)
    assert_holds(pair, [(3, 3)])
    pair.unlink(token)


def test_a_revoked_seq_lands_no_more_or_the_engine_says_that_it_cannot_promise(pair: Pair) -> None:
    token = pair.link(1, 2)
    proven = pair.receiver.ask("revoke", token, 1)
    assert proven is (pair.engine == "tcp")
    if proven:
        for seq in (1, 3):  # revoked, never allowed
            result = pair.sender.write(token, rows_of([(1, 1)]), seq)
            assert (result["error"], result["in_doubt"]) == ("RejectedByPeer", False)
        assert pair.receiver.ask("changed") == []
    assert "error" not in pair.sender.write(token, rows_of([(2, 2)]), 2)
    assert_holds(pair, [(2, 2)])
    pair.unlink(token)


def test_a_killed_sender_is_lost_and_nothing_lands_after_that(pair: Pair) -> None:
    token = pair.link(1)
    pair.sender.ask("start", token, [(0, 0, BIG)], 1)
    eventually_now(lambda: pair.receiver.ask("changed"), 20, "the first bytes")
    pair.sender.kill()
    eventually_now(lambda: pair.receiver.has_heard("Lost", token, 0), 20, "the fence")
    pair.receiver.ask("fill", CANARY)
    assert pair.receiver.ask("revoke", token, 1) is (pair.engine != "shm")
    for _ in range(10):
        assert pair.receiver.ask("changed") == []


def test_a_killed_receiver_fails_the_write_and_ends_the_link(pair: Pair) -> None:
    token = pair.link(1)
    pair.sender.ask("start", token, [(0, 0, BIG)], 1)
    eventually_now(lambda: pair.receiver.ask("changed"), 20, "the first bytes")
    pair.receiver.kill()
    eventually_now(lambda: pair.sender.has_heard("Lost", token), 20, "the loss")
    if pair.engine == "shm":
        pair.sender.ended()  # nobody stops a store into memory that nobody reads
    else:
        assert pair.sender.failed()["error"] in {"PeerGone", "TransferTimeout"}
    after = pair.sender.write(token, rows_of([(1, 1)]), 1)
    assert (after["error"], after["in_doubt"]) == ("PeerGone", False)
    pair.sender.ask("release", token)
    pair.restart()
    pair.receiver.ask("fill", CANARY)
    again = pair.link(1)
    assert "error" not in pair.sender.write(again, rows_of([(1, 1)]), 1)
    assert_holds(pair, [(1, 1)])
    pair.unlink(again)


def test_a_stopped_sender_is_no_fence_but_can_be_revoked_where_the_receiver_decides(pair: Pair) -> None:
    token = pair.link(1)
    pair.sender.ask("start", token, [(0, 0, BIG)], 1)
    eventually_now(lambda: pair.receiver.ask("changed"), 20, "the first bytes")
    pair.sender.stop()
    proven = pair.receiver.ask("revoke", token, 1)
    if pair.engine == "tcp" and not proven:
        eventually_now(lambda: pair.receiver.has_heard("Revoked", token, 1), 10, "the revocation")
    pair.receiver.ask("fill", CANARY)
    assert not pair.receiver.has_heard("Lost", token, 0)
    pair.sender.go_on()
    if pair.engine == "tcp":
        result = pair.sender.failed()  # the write that was stopped may have landed before it was revoked
        rejected, outlasted = ("RejectedByPeer", False), ("TransferTimeout", True)
        assert (result["error"], result["in_doubt"]) in {rejected, outlasted}
        assert pair.receiver.ask("changed") == []
    else:
        assert proven is False
        eventually_now(lambda: pair.receiver.ask("changed"), 20, "what lands after the stop")
        pair.sender.ended()
    pair.unlink(token)


def test_a_stopped_receiver_leaves_doubt_in_time_and_what_lands_late_is_where_the_engine_says(
    pair: Pair,
) -> None:
    """tcp: nothing of a revoked seq, though its bytes waited in the socket. mooncake: all of it, as it warns."""
    token = pair.link(1)
    pair.receiver.stop()
    result = pair.sender.write(token, [(0, 0, BIG)], 1)
    pair.receiver.tell("revoke", token, 1)
    pair.receiver.go_on()
    proven = pair.receiver.answer()
    if pair.engine in ONE_SIDED:
        assert "error" not in result  # the copy needs nobody at the other end
        assert len(pair.receiver.ask("changed")) == BIG // BLOCK  # type: ignore[arg-type]
        pair.unlink(token)
        return
    assert (result["error"], result["in_doubt"]) == ("TransferTimeout", True)
    assert float(str(result["s"])) < 4 * (TCP_TIMEOUT_S if pair.engine == "tcp" else 5.0) + 2
    if pair.engine == "tcp":
        if not proven:
            eventually_now(lambda: pair.receiver.has_heard("Revoked", token, 1), 10, "the revocation")
        pair.receiver.ask("fill", CANARY)
        eventually_now(lambda: pair.receiver.has_heard("Lost", token, 0), 10, "the end of the link")
        assert pair.receiver.ask("changed") == []
        again = pair.link(2)
        assert "error" not in pair.sender.write(again, rows_of([(5, 0), (6, 1)]), 2)
        assert_holds(pair, [(5, 0), (6, 1)])
        pair.unlink(again)
    else:
        assert proven is False
        eventually_now(lambda: pair.receiver.ask("changed"), 30, "the late landing")
        pair.unlink(token)
