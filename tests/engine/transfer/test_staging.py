"""KV of a device by way of the host: real sessions over ``shm`` and ``tcp``, a second tensor as the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pdcore.clock import SystemClock
from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout
from pdcore.engine.staged_side import StagedSide
from pdcore.engine.transfer import staging
from pdcore.engine.transfer.engine import TransferEngine
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes
from pdcore.engine.transfer.memory import address_of, free_on_host, on_host
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    Drained,
    Handshaken,
    Open,
    PrefillGroup,
    SendFailed,
    Sent,
    SideEvent,
    WriteEnded,
)
from pdcore.engine.transfer.plan import RegionShape, WriteOps
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.staging import Blocks, StagedEngine
from pdcore.engine.transfer.tcp import TcpEngine
from pdcore.engine.transfer.wire import RankIdentity
from pdcore.errors import ConfigError
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import (
    CANARY,
    DECODE_BLOCKS,
    LAYOUT,
    ONE,
    SOURCE_BLOCKS,
    Context,
    Prefill,
    got,
    has,
    run,
    tokens_of,
)
from tests.support.eventually import eventually_now
from tests.support.fake_device import Traffic, filled, on_fake_device

pytestmark = pytest.mark.integration

BLOCK = LAYOUT.block_bytes
SOURCE, TARGET = RegionShape(LAYOUT, (SOURCE_BLOCKS,)), RegionShape(LAYOUT, (DECODE_BLOCKS,))
ENGINES: dict[str, Callable[[], ShmEngine | TcpEngine]] = {
    "shm": ShmEngine,
    "tcp": lambda: TcpEngine(bind_ip="127.0.0.1"),
}


class Decode:
    """A decode rank whose pool is ``device``. Both memories are full of canaries when it starts."""

    def __init__(self, session: ReceivingSession, shape: RegionShape = TARGET) -> None:
        self.session = session
        self._size = shape.layout.block_bytes
        self.device = filled([CANARY] * DECODE_BLOCKS, self._size)
        self.mirror = on_host(session.region_buffer)
        self.mirror[:] = bytes([CANARY + 1]) * self.mirror.nbytes
        self.side = StagedSide(session, shape, self.mirror, self.device)
        self.clock = SystemClock()
        self.events: list[SideEvent] = []
        self.handoffs = 0

    def open(self, room: int, prefill: PrefillGroup, blocks: tuple[int, ...]) -> int:
        self.handoffs += 1
        order = Open(
            handoff=self.handoffs,
            room=room,
            prefill=prefill,
            blocks=(blocks,),
            prompt_len=tokens_of(room),
            remaining_ms=20_000,
        )
        self.side.obey(order, self.clock.now())
        return self.handoffs

    def abort(self, handoff: int) -> None:
        self.side.obey(AbortHandoff(handoff=handoff, code="cancelled"), self.clock.now())

    def turn(self) -> None:
        self.events += self.side.poll(self.clock.now())

    def block(self, index: int) -> set[int]:
        return set(self.device[index * self._size : (index + 1) * self._size].tolist())

    def has(self, kind: type[SideEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)


@dataclass
class Pair:
    """``source`` and ``decode.device`` are the devices' memories; ``reads`` counts copies out of the first."""

    prefill: Prefill
    decode: Decode
    source: Tensor
    reads: Traffic

    def hand_off(self, room: int, blocks: tuple[int, ...]) -> int:
        self.prefill.expect(room, tokens_of(room))
        peer = ranks.peer_at(self.prefill.session.endpoint)
        return self.decode.open(room, ranks.group_of(peer), blocks)

    def until(self, check: Callable[[], object]) -> None:
        def turned() -> object:
            self.prefill.turn()
            self.decode.turn()
            return check()

        eventually_now(turned, 10)

    def untouched_but(self, *blocks: int) -> bool:
        return all(self.decode.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in blocks)


def arrived(pair: Pair, count: int) -> bool:
    return len(pair.decode.events) == count


def sending(
    context: Context,
    directory: Path,
    engine: TransferEngine,
    source: Tensor,
    sizes: GroupSizes = ONE,
    rank: GroupRank = ranks.ALONE,
) -> SendingSession:
    """An unopened prefill rank whose pool is ``source``."""
    shape = RegionShape(LAYOUT.shard(sizes.tp, rank.tp), (SOURCE_BLOCKS,))
    return SendingSession(
        layout=LAYOUT,
        blocks=(SOURCE_BLOCKS,),
        source=source,
        sizes=sizes,
        identity=RankIdentity(instance_id="p", incarnation="p1", tp=rank.tp),
        engine=StagedEngine(engine, shape),
        bind_ip="127.0.0.1",
        runtime_dir=directory,
        context=context,
        clock=SystemClock(),
        threads=2,
    )


@pytest.fixture(params=list(ENGINES))
def pair(request: pytest.FixtureRequest, context: Context, runtime_dir: Path) -> Iterator[Pair]:
    traffic = Traffic()
    memory = numbered(BLOCK)
    engine = ENGINES[request.param]()
    with (
        sending(context, runtime_dir, engine, on_fake_device(memory, traffic)) as prefill,
        ranks.receiving(context, engine=engine) as decode,
    ):
        yield Pair(Prefill(prefill), Decode(decode), memory, traffic)
        traffic.gate.set()


def numbered(size: int) -> Tensor:
    """A prefill rank's memory: every block filled with its own number + 1."""
    return filled([block + 1 for block in range(SOURCE_BLOCKS)], size)


def test_kv_goes_from_device_to_device_and_nothing_else_changes(pair: Pair) -> None:
    handoff = pair.hand_off(3, (9, 4, 20))
    pair.until(lambda: pair.decode.has(Arrived) and has(pair.prefill, Sent))
    assert pair.decode.events == [Arrived(handoff=handoff, first_token=3, kv_len=8)]
    assert (pair.decode.block(9), pair.decode.block(4)) == ({4}, {5})
    assert pair.untouched_but(9, 4)
    assert pair.reads.to_host == 1, "neighbours are one copy"


def test_what_the_device_holds_when_it_is_sent_is_what_arrives(pair: Pair) -> None:
    """The mirror still has what the blocks held before."""
    pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Sent))
    pair.source[3 * BLOCK : 5 * BLOCK] = 77
    pair.hand_off(19, (11, 12))
    pair.until(lambda: len(pair.decode.events) == 2)
    assert (pair.decode.block(11), pair.decode.block(12)) == ({77}, {77})
    assert (pair.decode.block(9), pair.decode.block(4)) == ({4}, {5})


def test_many_rooms_reuse_the_blocks_of_both_devices(pair: Pair) -> None:
    for room in range(1, 31):
        blocks = (2 * (room % 3), 2 * (room % 3) + 1)
        pair.hand_off(room, blocks)
        pair.until(partial(arrived, pair, room))
        found = [pair.decode.block(block) for block in blocks]
        assert found == [{room % SOURCE_BLOCKS + 1}, {(room + 1) % SOURCE_BLOCKS + 1}]
    assert pair.untouched_but(*range(6))
    assert pair.decode.side._opened == {}


def test_a_hand_off_given_up_leaves_the_device_alone(pair: Pair) -> None:
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.decode.abort(handoff)
    pair.until(lambda: pair.decode.has(Drained))
    assert pair.untouched_but()
    assert pair.reads.to_host == 0
    assert pair.decode.side._opened == {}


def test_what_lands_in_the_mirror_after_an_abort_stays_there(pair: Pair) -> None:
    """KV and slot are written, and decode gives the hand-off up before it looks: its blocks are the next one's."""
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.prefill.send(3, 8)
    run(lambda: has(pair.prefill, Sent), pair.prefill)
    assert set(pair.decode.mirror[9 * BLOCK : 10 * BLOCK]) == {4}
    pair.decode.abort(handoff)
    pair.until(lambda: pair.decode.has(Drained))
    assert pair.untouched_but()
    pair.prefill.sends = True
    pair.hand_off(7, (4, 20))
    pair.until(lambda: pair.decode.has(Arrived))
    assert (pair.decode.block(4), pair.decode.block(20)) == ({8}, {9})
    assert pair.untouched_but(4, 20)


def test_blocks_are_not_let_go_of_while_a_copy_reads_them(pair: Pair) -> None:
    """The leg fails while its copy into the mirror stands still: the blocks come back only after it, and whoever gets
    them next sends its own."""
    pair.reads.gate.clear()
    handoff = pair.hand_off(3, (9, 4))
    pair.until(pair.reads.waiting.is_set)
    pair.prefill.fail(3)
    for _ in range(20):
        pair.prefill.turn()
    assert not has(pair.prefill, WriteEnded), "the copy may still read the blocks"
    pair.decode.abort(handoff)
    pair.reads.gate.set()
    pair.until(lambda: has(pair.prefill, WriteEnded) and pair.decode.has(Drained))
    pair.source[3 * BLOCK : 5 * BLOCK] = 99  # they are somebody else's now, and so are decode's
    pair.hand_off(19, (9, 4))
    pair.until(lambda: pair.decode.has(Arrived) and has(pair.prefill, Sent))
    assert (pair.decode.block(9), pair.decode.block(4)) == ({99}, {99})
    assert pair.untouched_but(9, 4)
    assert not has(pair.prefill, SendFailed)
    assert len(got(pair.prefill, Sent)) == 1


def test_an_open_that_is_refused_is_not_remembered(pair: Pair) -> None:
    for room in range(1, ranks.SLOTS + 2):
        pair.hand_off(room, (2 * room, 2 * room + 1))
    pair.until(lambda: len([e for e in pair.decode.events if isinstance(e, Arrived)]) == ranks.SLOTS)
    pair.until(lambda: pair.decode.has(Drained))
    assert pair.decode.side._opened == {}


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_ranks_that_hold_different_heads_pass_on_whole_blocks(
    context: Context, runtime_dir: Path, engine: str, prefill_tp: int, decode_tp: int
) -> None:
    """A rank's writes touch parts of each block, and every part of it has to be on the other device in the end."""
    before, after = GroupSizes(1, prefill_tp), GroupSizes(1, decode_tp)
    with ExitStack() as stack:
        prefills, decodes = [], []
        for tp in range(prefill_tp):
            (directory := runtime_dir / str(tp)).mkdir(mode=0o700)
            source = numbered(LAYOUT.shard(prefill_tp, tp).block_bytes)
            session = sending(context, directory, ENGINES[engine](), source, before, GroupRank(0, tp))
            prefills.append(Prefill(stack.enter_context(session)))
        for tp in range(decode_tp):
            receiving = ranks.receiving(context, engine=ENGINES[engine](), sizes=after, rank=GroupRank(0, tp))
            shape = RegionShape(LAYOUT.shard(decode_tp, tp), (DECODE_BLOCKS,))
            decodes.append(Decode(stack.enter_context(receiving), shape))
        peers = [
            ranks.peer_at(prefill.session.endpoint, rank=GroupRank(0, tp))
            for tp, prefill in enumerate(prefills)
        ]
        for prefill in prefills:
            prefill.expect(3, tokens_of(3))
        for decode in decodes:
            decode.open(3, ranks.group_of(*peers, sizes=before), (9, 4))

        def turned() -> bool:
            for prefill in prefills:
                prefill.turn()
            for decode in decodes:
                decode.turn()
            return all(decode.has(Arrived) for decode in decodes)

        eventually_now(turned, 10)
        for decode in decodes:
            assert (decode.block(9), decode.block(4)) == ({4}, {5})
            assert all(decode.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in (9, 4))


def two_groups() -> RegionShape:
    def group(key: str, window: int | None, dim: int) -> KvGroup:
        entries = tuple(
            KvEntry(
                layer=0 if window is None else 1,
                name=name,
                heads=1,
                dim=dim,
                itemsize=4,
                dtype_name="float32",
            )
            for name in ("k", "v")
        )
        return KvGroup(key=key, block_size=4, entries=entries, window=window)

    return RegionShape(KvLayout(groups=(group("full", None, 4), group("window", 4, 8))), (300, 40))


@pytest.mark.parametrize("seed", range(20))
def test_whole_blocks_are_copied_and_no_byte_of_any_other(seed: int) -> None:
    dice, shape = np.random.default_rng(seed), two_groups()
    wanted, rows = np.zeros(shape.pool_bytes, bool), []
    for index, group in enumerate(shape.layout.groups):
        size, offset = group.block_bytes, shape.group_offset(index)
        for block in dice.choice(shape.blocks[index] - 4, 8, replace=False).tolist():
            first = int(dice.integers(size))
            length = int(dice.integers(1, 3 * size))
            last = (first + length - 1) // size
            rows.append((offset + block * size + first, length))
            wanted[offset + block * size : offset + (block + last + 1) * size] = True
    columns = np.array(dice.permutation(rows), np.int64)
    spans = list(Blocks(shape).read_by(WriteOps(columns[:, 0], columns[:, 0], columns[:, 1])))
    copied = np.zeros(shape.pool_bytes, np.int64)
    for first, stop in spans:
        copied[first:stop] += 1
    assert (copied == wanted).all(), "each of them once"


def test_blocks_before_a_window_are_not_brought_over() -> None:
    shape = two_groups()
    full, window = (group.block_bytes for group in shape.layout.groups)
    lists = ((5, 2, 6), (30, 7, 8))
    at = shape.group_offset(1)
    assert list(Blocks(shape).of(lists, 10)) == [
        (2 * full, 3 * full),
        (5 * full, 7 * full),
        (at + 7 * window, at + 9 * window),
    ]


def test_a_mirror_that_does_not_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-tokens .* mirror of \d+ MiB in host memory, which has \d+ MiB"
    ):
        staging.check_room(1 << 60, "npu:0")
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_on_host(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_on_host(tmp_path) > 1 << 20
    assert free_on_host(tmp_path / "none") > 1 << 20


def test_the_mirror_begins_where_the_engine_wants_it(runtime_dir: Path) -> None:
    sender = StagedEngine(ShmEngine(), SOURCE).sender(
        torch.zeros(SOURCE.pool_bytes, dtype=torch.uint8), runtime_dir
    )
    assert sender._mirror.data_ptr() % 4096 == 0
    assert sender.inline_bytes(b"t") == 0
    with pytest.raises(TypeError, match="not the host's"):
        on_host(sender._pool)
    assert address_of(sender._pool) == sender._pool.data_ptr()
