"""The registry at scale on a real etcd: ``python -m bench registry [--json] [--instances 1000] [--puts 1000]``.

1,000 instances of 16 ranks, one lease each, and real routers that follow them.

Latency is from just before a put to the router's log line about its event, beside a process with a bare gRPC watch. Puts
go alternately below the view and below a prefix that only the bare watch sees: same writer, same minute, and
neither watcher competes with the other for a core.

CPU per event is told twice: without the network (:mod:`bench.registry_cpu`), and of the router's whole process beside
the bare watch's.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, limit, quantile, show
from bench.progress import step
from bench.registry_cpu import (
    lines_to_nowhere,
    per_event,
    per_line,
    per_listed_record,
    rank_answers,
    state_answers,
)
from bench.registry_fleet import RANKS, Fleet
from bench.registry_processes import (
    RawWatch,
    cpu_s,
    events_of,
    raw_watch,
    relists_of,
    rss_mb,
    view_of,
)
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.store import Put, Store
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import State
from tests.support.cluster import Cluster, Router
from tests.support.eventually import eventually

KEYSPACE = Keyspace(cluster="bench")
RAW_PREFIX = "/bench/raw/"
ROUTERS = 10
PAUSE_S = 0.003
WARM_UP = 20
SETTLE_S = 300.0
STORE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Bench:
    """What the steps share; ``figures`` grows."""

    cluster: Cluster
    store: Store
    fleet: Fleet
    puts: int
    figures: list[Figure]


def main(arguments: list[str]) -> int:
    """Run every step and show the table; 1 when a bound is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench registry", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--instances", type=int, default=1000, help=f"of {RANKS} ranks each")
    parser.add_argument("--puts", type=int, default=1000, help="for latency and CPU, per watcher")
    parser.add_argument("--routers", type=int, default=ROUTERS)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, lines_to_nowhere("warning"):
        figures = asyncio.run(measure(Path(scratch), given.instances, given.puts, given.routers))
    return show(figures, as_json=given.json)


async def measure(directory: Path, instances: int, puts: int, routers: int) -> list[Figure]:
    """All figures, in the order of the steps."""
    with Cluster(directory, directory, cluster=KEYSPACE.cluster) as cluster:
        cluster.etcd.start()
        async with EtcdStore((cluster.etcd.endpoint,), timeout_s=STORE_TIMEOUT_S) as store:
            bench = Bench(cluster, store, Fleet(store, KEYSPACE, instances), puts, [])
            step(f"{instances} instances of {RANKS} ranks register")
            async with bench.fleet.registered():
                first = await asyncio.to_thread(started, cluster, 1)
                await in_process(bench)
                await beside_a_raw_watch(bench, first[0])
                step(f"{routers} routers start")
                everybody = first + await asyncio.to_thread(started, cluster, routers - 1)
                await shared_by_routers(bench, everybody)
                await restart_everything(bench, everybody)
    return bench.figures


def started(cluster: Cluster, count: int) -> list[Router]:
    """Routers that are ready."""
    routers = [cluster.router("--log-format", "json") for _ in range(count)]
    return [router.wait_ready() for router in routers]


async def in_process(bench: Bench) -> None:
    """List, build, fold: the router's own work, without the network around the events."""
    step("list and build; replay of single events")
    listing = await per_listed_record(bench.store, KEYSPACE)
    bench.figures.append(limit("list + build, CPU per record", listing, "µs", 80))
    snapshot = await bench.store.list(KEYSPACE.view)
    for kind, answers_of in (("rank", rank_answers), ("instance", state_answers)):
        answers = answers_of(bench.fleet, KEYSPACE, snapshot.revision + 1, bench.puts)
        event = await per_event(snapshot, KEYSPACE, answers)
        bench.figures.append(limit(f"{kind} event, CPU: decode, fold, diff, subscribers", event, "µs", 150))
    line = Figure(name="log line, CPU", value=per_line(), unit="µs", beside="that event", reference=event)
    bench.figures.append(line)


async def beside_a_raw_watch(bench: Bench, router: Router) -> None:
    """Latency and CPU of a whole router, and its memory, beside the least that a watch can cost."""
    step(f"{bench.puts} puts each to a router and to a bare watch, alternately")
    with raw_watch(bench.cluster.etcd.endpoint, RAW_PREFIX) as raw:
        await alternating(bench, router, raw)
    bench.figures.append(limit("router, resident memory", rss_mb(router.pid), "MB", 200))


async def alternating(bench: Bench, router: Router, raw: RawWatch) -> None:
    """The puts, and the figures of both processes."""
    before = cpu_s(router.pid), cpu_s(raw.pid)
    sent_router, sent_raw = {}, {}
    value = b"x" * 700  # as long as an instance's record
    for number in range(bench.puts):
        state: State = "serving" if number // bench.fleet.size % 2 else "draining"
        at = time.time()
        sent_router[await bench.fleet.say(number % bench.fleet.size, state)] = at
        await asyncio.sleep(PAUSE_S)
        at = time.time()
        sent_raw[(await bench.store.commit((), (Put(f"{RAW_PREFIX}{number}", value),))).revision] = at
        await asyncio.sleep(PAUSE_S)
    await eventually(
        lambda: sent_router.keys() <= events_of(router).keys(), SETTLE_S, "all events in the log"
    )
    after = cpu_s(router.pid), cpu_s(raw.pid)
    await bench.fleet.each(bench.fleet.serve)
    ours, theirs = delays(sent_router, events_of(router)), delays(sent_raw, raw.ended())
    for percent, wanted in ((50, 1.5), (99, 2.0)):
        bench.figures.append(
            Figure(
                name=f"put → event in a router, p{percent}",
                value=quantile(ours, percent),
                unit="ms",
                beside="bare watch",
                reference=quantile(theirs, percent),
                wanted=wanted,
            )
        )
    bench.figures.append(
        Figure(
            name="router's process, CPU per event",
            value=(after[0] - before[0]) / bench.puts * 1e6,
            unit="µs",
            beside="bare watch",
            reference=(after[1] - before[1]) / bench.puts * 1e6,
        )
    )


def delays(sent: dict[int, float], seen: dict[int, float]) -> list[float]:
    """Milliseconds from put to event, the first ones left out."""
    return [(seen[revision] - at) * 1000 for revision, at in list(sent.items())[WARM_UP:]]


async def shared_by_routers(bench: Bench, routers: list[Router]) -> None:
    """What etcd pays for one more router per event, beside what it pays for the put itself and one watch."""
    step(f"{bench.puts} puts that {len(routers)} routers follow")
    alone = await etcd_cpu_per_put(
        bench, lambda number: bench.store.commit((), (Put(f"{RAW_PREFIX}{number}", b"x"),))
    )
    shared = await etcd_cpu_per_put(
        bench, lambda number: bench.fleet.say(number % bench.fleet.size, "serving")
    )
    bench.figures.append(
        Figure(
            name=f"etcd CPU per event, {len(routers)} routers",
            value=shared,
            unit="µs",
            beside="nobody watches",
            reference=alone,
        )
    )


async def etcd_cpu_per_put(bench: Bench, put: Callable[[int], Awaitable[object]]) -> float:
    """Microseconds of etcd's whole process."""
    pid = bench.cluster.etcd.child.pid
    before = cpu_s(pid)
    for number in range(bench.puts):
        await put(number)
        await asyncio.sleep(PAUSE_S)
    return (cpu_s(pid) - before) / bench.puts * 1e6


async def restart_everything(bench: Bench, routers: list[Router]) -> None:
    """One instance after the other leaves and comes back; in the end everybody must see what is there."""
    step(f"{bench.fleet.size} instances restart one after another, followed by {len(routers)} routers")
    before = [cpu_s(router.pid) for router in routers]
    await bench.fleet.each(bench.fleet.restart, at_once=1)
    wrong = await wrong_views(bench, routers)
    spent = sum(cpu_s(router.pid) for router in routers) - sum(before)
    changes = bench.fleet.size * (2 * RANKS + 5) * len(routers)
    bench.figures += [
        limit("restarts: routers with a wrong view", wrong, "", 0),
        limit("restarts: relists and repairs", sum(map(relists_of, routers)), "", 0),
        limit("restarts: router CPU per changed key", spent / changes * 1e6, "µs", 150),
    ]


async def wrong_views(bench: Bench, routers: list[Router]) -> int:
    """How many routers do not see, in the end, every instance complete in its newest incarnation."""
    expected = {
        bench.fleet.instance_id(number): (bench.fleet.record(number, "serving").incarnation, True, RANKS)
        for number in range(bench.fleet.size)
    }
    deadline = time.monotonic() + SETTLE_S
    while wrong := sum([await asyncio.to_thread(view_of, router) != expected for router in routers]):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(1)
    return wrong
