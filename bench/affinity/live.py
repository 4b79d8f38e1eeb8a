"""The same traffic through real router processes: ours beside the Rust routers' ``cache_aware``.

All kinds of routers run at the same time, each before engines of its own, so that whatever else the machine does meets
all alike; first one of each, then four. Requests arrive as the workload says, each at a random one of the routers. Instants and
durations are the workload's, whose clock runs ``speed`` times as fast as the machine's. Times to first tokens are what the
engines' queues and caches make of them; those by the wall, the routers' own time included, stand beside them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bench.affinity.clients import Clients
from bench.affinity.lanes import Lane, Subject, body_of, fleets, lanes
from bench.affinity.simulation import Outcome, outcome_of
from bench.affinity.workloads import Request
from bench.progress import step

APART_S: Final = 0.37
"""Between the beginnings of two lanes, so that they do not all have their bursts at once."""


class Sent(NamedTuple):
    """How a request went: seconds by the wall until its answer, and the status of that."""

    took_s: float
    status: int


class Fed(NamedTuple):
    """Every request of a lane, and how many times as long as it should have it took to send them all."""

    sent: Sequence[Sent]
    slowed: float


def replay(
    subjects: Sequence[Subject], counts: Sequence[int], requests: Sequence[Request], speed: float
) -> dict[tuple[str, int], Outcome]:
    """The outcome of ``requests`` by kind and number of routers; the engines of a kind are the same ones each time."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        with fleets(len(subjects), speed, scratch) as engines:
            for count in counts:
                with lanes(subjects, engines, count, scratch) as running:
                    fed = uvloop.run(_feed_all(running, requests, speed))
                    for lane, one in zip(running, fed, strict=True):
                        outcomes[lane.name] = _outcome(lane, one, speed)
    return outcomes


async def _feed_all(running: Sequence[Lane], requests: Sequence[Request], speed: float) -> list[Fed]:
    for lane in running:
        lane.engines.begin()
    async with asyncio.TaskGroup() as group:
        fed = [
            group.create_task(_feed(lane, requests, speed, number * APART_S))
            for number, lane in enumerate(running)
        ]
    return [one.result() for one in fed]


async def _feed(lane: Lane, requests: Sequence[Request], speed: float, wait_s: float) -> Fed:
    """Each of ``requests`` after the one before, in ``wait_s``; which router gets it is drawn as in the simulation.

    A machine that cannot keep up makes the clock stand still: nothing is sent sooner after what went before than it
    should be, so that routers see as much in flight as they would.
    """
    dice, sent = random.Random(1), list[asyncio.Task[Sent]]()
    with ExitStack() as stack:
        routers = [Clients(port) for port in lane.ports]
        for router in routers:
            stack.callback(router.close)
        async with asyncio.TaskGroup() as group:
            first = began = time.monotonic() + wait_s
            for request in requests:
                due = began + request.at / speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                began += max(0.0, time.monotonic() - due)
                router = routers[dice.randrange(len(routers))]
                sent.append(group.create_task(_ask(router, body_of(request.prompt(), request.at))))
    nominal_s = requests[-1].at / speed
    return Fed([one.result() for one in sent], 1 + (began - first) / nominal_s)


async def _ask(router: Clients, body: bytes) -> Sent:
    began = time.monotonic()
    status = await router.ask(body)
    return Sent(time.monotonic() - began, status)


def _outcome(lane: Lane, fed: Fed, speed: float) -> Outcome:
    counts, walls = lane.counts(), sorted(one.took_s * speed for one in fed.sent)
    wrong = Counter(one.status for one in fed.sent if one.status != 200)
    if wrong:
        step(f"{len(lane.ports)} of {lane.subject.name}: answers by status, besides 200: {dict(wrong)}")
    return outcome_of(
        [(one["served"], one["found"], one["asked"]) for one in counts],
        [took for one in counts for took in one["took_s"]],
        failed=wrong.total(),
        wall_p99_s=walls[int(len(walls) * 0.99)],
        slowed=fed.slowed,
    )
