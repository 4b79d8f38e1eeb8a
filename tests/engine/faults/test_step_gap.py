"""Peers that never answer, take nothing more, or are dead: the steps of everybody else go on as before."""

from __future__ import annotations

import gc
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from bench.engine_loop import InstantModel, Stage, decode_loop, group_of
from pdcore.engine.messages import Failed, ToLeader
from pdcore.engine.model.progress import Progress
from pdcore.engine.sampled import Sampled
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.scheduler.request import Request
from pdcore.engine.transfer.orders import PrefillGroup
from tests.cluster import figures

pytestmark = pytest.mark.cluster

RUNNING: Final = 8
HOSTILE: Final = 12
STEP_S: Final = 0.002
LASTS_S: Final = 3.0
REMAINING_MS: Final = 1000
GAP_S: Final = 0.1


class PacedModel(InstantModel):
    """Takes ``STEP_S`` for a step."""

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        time.sleep(STEP_S)
        self.seconds += STEP_S
        return super().run(batch, requests, progress)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """As in a rank's process: no collection walks through what was imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def runnable_s() -> float:
    """How long this thread has waited for a CPU so far: not the loop's doing."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def listener(path: Path, backlog: int, stack: ExitStack) -> str:
    """Somebody who will never accept."""
    ear = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    ear.bind(str(path))
    ear.listen(backlog)
    return str(path)


def full_listener(path: Path, stack: ExitStack) -> str:
    """Nobody else gets in either."""
    where = listener(path, 0, stack)
    while True:
        guest = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        guest.setblocking(False)
        try:
            guest.connect(where)
        except BlockingIOError:
            return where


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def silent_port(stack: ExitStack) -> int:
    ear = stack.enter_context(socket.socket())
    ear.bind(("127.0.0.1", 0))
    ear.listen(1)
    return int(ear.getsockname()[1])


def posing(group: PrefillGroup, name: str, port: int, path: str) -> PrefillGroup:
    """``group`` as if its rank were at ``port`` and its memory at ``path``."""
    (peer,) = group.ranks
    shm = cast(Mapping[str, Any], peer.transfer["engines"])["shm"]
    transfer: dict[str, object] = {"engines": {"shm": {**shm, "socket": path}}}
    other = msgspec.structs.replace(peer, instance_id=name, rank_port=port, transfer=transfer)
    return msgspec.structs.replace(group, instance_id=name, ranks=(other,))


def gaps(stage: Stage, until: float) -> list[float]:
    """Seconds of each turn beside its model, as if nobody else wanted the CPU."""
    took = []
    while time.monotonic() < until:
        stage.model.seconds = 0.0
        waited, began = runnable_s(), time.monotonic()
        stage.loop.turn()
        took.append(time.monotonic() - began - stage.model.seconds - (runnable_s() - waited))
    return took


def failures(stage: Stage) -> Counter[str]:
    """What the rank has told its leader to have failed, by code."""
    codes: Counter[str] = Counter()
    while stage.leader.poll(0):
        message = msgspec.msgpack.decode(stage.leader.recv_multipart()[1], type=ToLeader)
        if isinstance(message, Failed):
            codes[message.code] += 1
    return codes


def test_no_peer_makes_the_others_wait(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stage = stack.enter_context(decode_loop(RUNNING, PacedModel()))
        group = group_of(stage.source)
        hostile = (
            posing(group, "silent", silent_port(stack), listener(tmp_path / "silent", 64, stack)),
            posing(group, "full", silent_port(stack), full_listener(tmp_path / "full", stack)),
            posing(group, "dead", closed_port(), str(tmp_path / "nobody")),
        )
        rooms = count(1000)
        for _ in range(HOSTILE):
            for one in hostile:
                stage.start(next(rooms), one, REMAINING_MS)
        took = gaps(stage, time.monotonic() + LASTS_S)
        assert stage.model.batch == RUNNING, "the others still run"
        failed = failures(stage)
    assert failed.total() == HOSTILE * len(hostile), failed
    figures.show("silent, full and dead peers", longest_gap_ms=max(took) * 1000, steps=len(took))
    assert len(took) > LASTS_S / STEP_S / 8
    assert max(took) < GAP_S
