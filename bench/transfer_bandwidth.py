"""KV write bandwidth of the shm hand-off, beside plain memmove of the same bytes in the same run.

    python bench/transfer_bandwidth.py [--mib 64] [--rounds 15] [--fragmented]

Prints one JSON line: GB/s of both and their ratio (wanted: at least 0.7). A round is one whole hand-off through both
sessions (handshake, KV write, slot, arrival) of ``--mib`` MiB; memmove copies between two mappings of the same sizes,
touched before. Rounds alternate, the best of each counts, so that other load on the machine hits both alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import zmq

from pdcore.clock import SystemClock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.mapping import GroupSizes
from pdcore.engine.transfer.memory import address_of
from pdcore.engine.transfer.orders import (
    Arrived,
    Expect,
    HandoffFailed,
    Handshaken,
    Open,
    PrefillGroup,
    PrefillPeer,
    Send,
    SendFailed,
)
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.wire import RankIdentity

LAYOUT = KvLayout.dense(layers=30, kv_heads=3, head_dim=64, block_size=16, itemsize=4, dtype_name="float32")
BUDGET_MS = 30_000
ONE = GroupSizes(1, 1)


def timed(action: Callable[[], object]) -> float:
    """Seconds that ``action`` took."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def hand_off(prefill: SendingSession, decode: ReceivingSession, room: int, blocks: tuple[int, ...]) -> None:
    """One room from leg to arrival, both sessions turned by this thread."""
    clock = SystemClock()
    tokens = len(blocks) * LAYOUT.block_size
    where = prefill.endpoint
    peer = PrefillPeer(
        instance_id="p",
        incarnation="p1",
        dp=0,
        cp=0,
        tp=0,
        rank_ip=where.rank_ip,
        rank_port=where.rank_port,
        transfer=where.transfer,
    )
    group = PrefillGroup(
        instance_id="p", incarnation="p1", dp=0, dp_size=1, cp_size=1, tp_size=1, ranks=(peer,)
    )
    prefill.obey(
        Expect(room=room, expected_peer="d1", prompt_len=tokens, remaining_ms=BUDGET_MS), clock.now()
    )
    decode.obey(
        Open(
            handoff=room,
            room=room,
            prefill=group,
            blocks=(blocks,),
            prompt_len=tokens,
            remaining_ms=BUDGET_MS,
        ),
        clock.now(),
    )
    poller = zmq.Poller()
    for pollable in [*prefill.pollables(), *decode.pollables()]:
        poller.register(pollable, zmq.POLLIN)
    while True:
        poller.poll(100)
        for sent in prefill.poll(clock.now()):
            if isinstance(sent, Handshaken):
                order = Send(room=room, blocks=(blocks,), first_token=1, kv_len=tokens)
                prefill.obey(order, clock.now())
            elif isinstance(sent, SendFailed):
                raise SystemExit(sent.message)
        for received in decode.poll(clock.now()):
            if isinstance(received, Arrived):
                return
            if isinstance(received, HandoffFailed):
                raise SystemExit(received.message)


def block_list(count: int, *, fragmented: bool) -> tuple[int, ...]:
    """Blocks in order, or shuffled so that nothing coalesces."""
    blocks = list(range(count))
    if fragmented:
        random.Random(1).shuffle(blocks)
    return tuple(blocks)


def measure(mib: int, rounds: int, *, fragmented: bool) -> dict[str, object]:
    """Best of ``rounds`` of both."""
    count = max(1, (mib << 20) // LAYOUT.block_bytes)
    nbytes = count * LAYOUT.block_bytes
    blocks = block_list(count, fragmented=fragmented)
    source, target = mmap.mmap(-1, nbytes), mmap.mmap(-1, nbytes)
    source.write(bytes(range(256)) * (nbytes // 256))
    to, start = address_of(memoryview(target)), address_of(memoryview(source))
    engine, clock, context = ShmEngine(), SystemClock(), zmq.Context()
    copies: list[float] = []
    hand_offs: list[float] = []
    with (
        context,
        tempfile.TemporaryDirectory(prefix="pdcore-bench-") as directory,
        SendingSession(
            layout=LAYOUT,
            blocks=(count,),
            source=memoryview(source),
            sizes=ONE,
            identity=RankIdentity(instance_id="p", incarnation="p1"),
            engine=engine,
            bind_ip="127.0.0.1",
            runtime_dir=Path(directory),
            context=context,
            clock=clock,
        ) as prefill,
        ReceivingSession(
            layout=LAYOUT,
            blocks=(count,),
            slots=4,
            sizes=ONE,
            identity=RankIdentity(instance_id="d", incarnation="d1"),
            engine=engine,
            context=context,
            clock=clock,
        ) as decode,
    ):
        for room in range(1, rounds + 2):
            hand_offs.append(timed(partial(hand_off, prefill, decode, room, blocks)))
            copies.append(timed(partial(ctypes.memmove, to, start, nbytes)))
        if bytes(decode.region_buffer) != source[:]:
            raise SystemExit("the bytes that arrived are not the bytes that were sent")
    write, copy = nbytes / min(hand_offs) / 1e9, nbytes / min(copies) / 1e9
    return {
        "bytes": nbytes,
        "fragmented": fragmented,
        "write_gb_s": round(write, 2),
        "memmove_gb_s": round(copy, 2),
        "ratio": round(write / copy, 3),
    }


def main() -> None:
    """Read the flags, print one line."""
    parser = argparse.ArgumentParser(description="KV write bandwidth against memmove.")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--fragmented", action="store_true", help="shuffle the blocks")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.mib, arguments.rounds, fragmented=arguments.fragmented)))


if __name__ == "__main__":
    main()
