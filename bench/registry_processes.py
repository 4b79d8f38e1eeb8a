"""The processes that are measured from outside: routers, and a bare watch beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import httpx
import psutil

from tests.support.cluster import Router

ANSWER_S = 60.0
RELISTED = ("listing the store again", "the view was not the store's")


class RawWatch:
    """A process of :mod:`bench.raw_watch`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def ended(self) -> dict[int, float]:
        """End it; revision → when its answer was read."""
        seen, _ = self._process.communicate(timeout=ANSWER_S)
        return {int(revision): at for revision, at in json.loads(seen).items()}


@contextmanager
def raw_watch(address: str, prefix: str) -> Iterator[RawWatch]:
    """Watching inside the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.raw_watch", address, prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "watching\n":
            raise SystemExit("the bare watch does not start")
        yield RawWatch(process)
    finally:
        process.kill()
        process.communicate()


def cpu_s(pid: int) -> float:
    """CPU seconds of the process so far, all threads, user and system."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def rss_mb(pid: int) -> float:
    """Resident memory."""
    return psutil.Process(pid).memory_info().rss / 1e6


def events_of(router: Router) -> dict[int, float]:
    """Revision → seconds since 1970 at which the router first told of an event of it, by its own log."""
    told: dict[int, float] = {}
    for line in router.output().splitlines():
        if '"event":"instance ' in line:
            said = json.loads(line)
            told.setdefault(said["revision"], datetime.fromisoformat(said["timestamp"]).timestamp())
    return told


def relists_of(router: Router) -> int:
    """How often the router listed again or repaired its view, by its own log."""
    output = router.output()
    return sum(output.count(words) for words in RELISTED)


def view_of(router: Router) -> dict[str, tuple[str, bool, int]]:
    """Instance id → incarnation, readiness and number of ranks, as the router sees them."""
    answer = httpx.get(f"{router.url}/pdcore/topology", timeout=ANSWER_S, trust_env=False).raise_for_status()
    return {
        instance_id: (one["incarnation"], one["ready"], len(one["ranks"]))
        for instance_id, one in answer.json()["instances"].items()
    }
