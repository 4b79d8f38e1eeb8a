"""KV writes of each transfer engine into another process, beside plain memmove of the same lists in the same run.

Rounds alternate between what is compared and the best of each counts, so that other load on the machine hits both alike.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import Figure
from bench.progress import step
from pdcore.engine.transfer.engine import Sender, TransferEngine
from pdcore.engine.transfer.memory import address_of
from pdcore.engine.transfer.mooncake import MooncakeEngine
from pdcore.engine.transfer.plan import WriteOps
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.tcp import TcpEngine

REGION: Final = 64 << 20
ROUNDS: Final = 15
TOKEN: Final = b"bench-writes-001"
SEQ: Final = 1
BUDGET_S: Final = 60.0
IP: Final = "127.0.0.1"
LISTS: Final = {
    "64 MiB in a row": (1, REGION),
    "1,024 x 4 KiB": (1024, 4 << 10),
    "512 x 64 KiB": (512, 64 << 10),
}


def engine_named(name: str) -> TransferEngine:
    """An engine that writes within this machine."""
    if name == "shm":
        return ShmEngine()
    return TcpEngine(bind_ip=IP) if name == "tcp" else MooncakeEngine(bind_ip=IP, timeout_s=30)


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Milliseconds of each list through each engine, the shm ones beside memmove."""
    source, copy = (memoryview(mmap.mmap(-1, REGION)) for _ in range(2))
    copy[:] = source[:] = bytes(range(256)) * (REGION // 256)
    plain = partial(_copy_rows, address_of(copy), address_of(source))
    figures = []
    with linked("shm", source) as shm, linked("tcp", source) as tcp:
        for name, (count, length) in LISTS.items():
            step(f"{name} through shm and tcp")
            ops = shuffled(count, length)
            rows = list(ops.rows())
            actions = (
                partial(plain, rows),
                partial(shm.write, TOKEN, ops, SEQ),
                partial(tcp.write, TOKEN, ops, SEQ),
            )
            memmove, by_shm, by_tcp = best_of(rounds, actions)
            figures += [
                _beside(f"shm write, {name}", by_shm, "memmove", memmove, 1 / 0.8),
                _beside(f"tcp write, {name}", by_tcp, "memmove", memmove, None),
            ]
    return figures


def shuffled(count: int, length: int) -> WriteOps:
    """``count`` copies of ``length`` bytes, none beside the one before it."""
    numbers = np.random.default_rng(1).permutation(count).astype(np.int64)
    return WriteOps(numbers * length, numbers[::-1] * length, np.full(count, length, dtype=np.int64))


def best_of(rounds: int, actions: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of the fastest run of each action, all run in turn."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for index, action in enumerate(actions):
            began = time.perf_counter()
            action()
            best[index] = min(best[index], time.perf_counter() - began)
    return best


def _copy_rows(target: int, source: int, rows: Sequence[tuple[int, int, int]]) -> None:
    for src_off, dst_off, length in rows:
        ctypes.memmove(target + dst_off, source + src_off, length)


def _beside(name: str, seconds: float, beside: str, reference: float, wanted: float | None) -> Figure:
    return Figure(
        name=name, value=seconds * 1000, unit="ms", beside=beside, reference=reference * 1000, wanted=wanted
    )


@contextmanager
def linked(name: str, source: memoryview) -> Iterator[Sender]:
    """A sender whose peer is another process."""
    with (
        tempfile.TemporaryDirectory(prefix="pdcore-bench-") as directory,
        engine_named(name).sender(source, Path(directory)) as sender,
        subprocess.Popen(
            [sys.executable, "-m", "bench.engine_receiver", name, str(REGION)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as peer,
    ):
        assert peer.stdin is not None
        assert peer.stdout is not None
        print(json.dumps(sender.endpoint()), file=peer.stdin, flush=True)
        _wait_linked(sender)
        assert peer.stdout.readline() == "linked\n", "the receiver ended"
        yield sender
        peer.stdin.close()


def _wait_linked(sender: Sender) -> None:
    give_up_at = time.monotonic() + BUDGET_S
    while not sender.drain():
        assert time.monotonic() < give_up_at, "the receiver does not connect"
        time.sleep(0.01)
