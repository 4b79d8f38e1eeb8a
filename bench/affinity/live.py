"""The same traffic through real router processes: ours beside the Rust routers' ``cache_aware``.

All kinds of routers, one and four of each, run at the same time, each before engines of its own, so that whatever else
the machine does meets all alike. Requests arrive as the workload says, each at a random one of the routers. Instants and
durations are the workload's, whose clock runs ``speed`` times as fast as the machine's. Times to first tokens are what the
engines' queues and caches make of them; those by the wall, the routers' own time included, stand beside them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bench.affinity.clients import Clients
from bench.affinity.lanes import Lane, Subject, body_of, lanes
from bench.affinity.simulation import Outcome, outcome_of
from bench.affinity.workloads import Request

APART_S: Final = 0.37
"""Between the beginnings of two lanes, so that they do not all have their bursts at once."""


class Sent(NamedTuple):
    """How a request went: seconds by the machine's clock, from when it was due; whether it was answered well."""

    late_s: float
    took_s: float
    good: bool


def replay(
    which: Sequence[tuple[Subject, int]], requests: Sequence[Request], speed: float
) -> dict[tuple[str, int], Outcome]:
    """The outcome of ``requests`` by kind and number of routers."""
    with tempfile.TemporaryDirectory() as scratch, lanes(which, speed, Path(scratch)) as running:
        sent = uvloop.run(_feed_all(running, requests, speed))
        return {
            lane.name: _outcome(lane, answers, speed) for lane, answers in zip(running, sent, strict=True)
        }


async def _feed_all(running: Sequence[Lane], requests: Sequence[Request], speed: float) -> list[list[Sent]]:
    first = time.monotonic() + 1
    begins = [first + number * APART_S for number in range(len(running))]
    for lane, began in zip(running, begins, strict=True):
        await asyncio.to_thread(lane.begin, began)
    async with asyncio.TaskGroup() as group:
        fed = [
            group.create_task(_feed(lane, requests, began, speed))
            for lane, began in zip(running, begins, strict=True)
        ]
    return [one.result() for one in fed]


async def _feed(lane: Lane, requests: Sequence[Request], began: float, speed: float) -> list[Sent]:
    """Each of ``requests`` at its time; which router gets it is drawn as in the simulation."""
    dice = random.Random(1)
    with ExitStack() as stack:
        routers = [Clients(port) for port in lane.ports]
        for router in routers:
            stack.callback(router.close)
        async with asyncio.TaskGroup() as group:
            sent = []
            for request in requests:
                due = began + request.at / speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                router = routers[dice.randrange(len(routers))]
                sent.append(group.create_task(_ask(router, body_of(request.prompt(), request.at), due)))
    return [one.result() for one in sent]


async def _ask(router: Clients, body: bytes, due: float) -> Sent:
    late_s = time.monotonic() - due
    good = await router.ask(body)
    return Sent(late_s, time.monotonic() - due, good)


def _outcome(lane: Lane, sent: Sequence[Sent], speed: float) -> Outcome:
    counts = lane.counts()
    return outcome_of(
        [(one["served"], one["found"], one["asked"]) for one in counts],
        [took for one in counts for took in one["took_s"]],
        failed=sum(not one.good for one in sent),
        wall_p99_s=_p99([one.took_s * speed for one in sent]),
        late_p99_s=_p99([one.late_s * speed for one in sent]),
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
