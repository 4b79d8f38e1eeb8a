"""What a process holds, looked at again and again, and whether that grows."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from bench.figures import Figure, limit

SETTLE_S = 10.0
POOLED = "event_engine"
MOST_POOLED = 32
PROGRESS_S = 2.0


@dataclass(frozen=True, slots=True)
class Held:
    """Everything whose number must not grow."""

    tasks: int
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was held after ``done`` cycles; ``rss`` in bytes, ``pool`` the threads that gRPC has at the moment."""

    done: int
    held: Held
    pool: int
    rss: int


class Growth:
    """Looks at this process after every batch of ``total`` cycles; the first fifth is for warming up."""

    def __init__(self, name: str, total: int, progress: TextIO, *, settle_s: float = SETTLE_S) -> None:
        self._name = name
        self._total = total
        self._progress = progress
        self._settle_s = settle_s
        self._process = psutil.Process()
        self._looks: list[Look] = []
        self._began = time.monotonic()
        self._said = self._began
        self.done = 0

    def next_size(self, looks: int, multiple: int) -> int:
        """Cycles until the next of ``looks`` looks, at least ``multiple``."""
        return min(self._total - self.done, max(multiple, self._total // looks))

    async def look(self, cycles: int) -> None:
        """``cycles`` more have ended. What only needs a moment to go is given that moment."""
        self.done += cycles
        held, deadline = self._held(), time.monotonic() + self._settle_s
        before = self._steady[0].held if self._steady else held
        while held != before and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            held = self._held()
        self._looks.append(Look(self.done, held, _threads()[1], self._process.memory_info().rss))
        self._say(held)

    def figures(self, bytes_per_cycle: float | None) -> list[Figure]:
        """The most that tasks, threads and descriptors differ by; the slope of memory, with its limit if it has one."""
        steady = self._steady or self._looks[-1:]
        found = [
            limit(f"{self._name}: {name}, most less least", _spread(steady, name), "", 0)
            for name in ("tasks", "threads", "descriptors")
        ]
        found.append(
            limit(f"{self._name}: gRPC's threads", max(look.pool for look in steady), "", MOST_POOLED)
        )
        if bytes_per_cycle is not None:
            slope = slope_of([(look.done, look.rss) for look in steady])
            found.append(limit(f"{self._name}: memory per cycle", slope, "B", bytes_per_cycle))
        rate = self.done / (time.monotonic() - self._began)
        found.append(
            Figure(
                name=f"{self._name}: per second", value=rate, unit="1/s", beside="cycles", reference=self.done
            )
        )
        return found

    @property
    def _steady(self) -> list[Look]:
        return [look for look in self._looks if look.done >= self._total / 5]

    def _held(self) -> Held:
        gc.collect()  # what only waits to be collected is not held
        return Held(len(asyncio.all_tasks()), _threads()[0], self._process.num_fds())

    def _say(self, held: Held) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_S:
            self._said = now
            rss = self._looks[-1].rss / 1e6
            line = f"… {self._name} {self.done} of {self._total}, {now - self._began:.0f} s, {held}, {rss:.1f} MB"
            print(line, file=self._progress, flush=True)


def _spread(looks: Sequence[Look], name: str) -> int:
    counts = [getattr(look.held, name) for look in looks]
    return int(max(counts) - min(counts))


def _threads() -> tuple[int, int]:
    """This process's threads: all but gRPC's pool, which has more of them for a while whenever they are starved; and that."""
    names = [_name_of(task) for task in Path("/proc/self/task").iterdir()]
    pooled = names.count(POOLED)
    return len(names) - names.count(None) - pooled, pooled


def _name_of(task: Path) -> str | None:
    try:
        return task.joinpath("comm").read_text().strip()
    except OSError:
        return None  # it has just ended


def slope_of(points: list[tuple[int, int]]) -> float:
    """The slope of the line that fits ``points`` best; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope
