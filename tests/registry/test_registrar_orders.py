"""A registrar carries out an order to end whatever state its parent is in."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from pdcore.clock import SystemClock
from pdcore.registry import machine, ordering
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.operator import give_order
from pdcore.registry.ordering import Give
from pdcore.registry.processes import Processes
from pdcore.registry.registrar_messages import PARENT
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureRecord
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.parents import has_ended, parent
from tests.support.registrations import rank_process, records, spec

CLUSTER, TTL_S = "ordered", 5


@pytest.mark.integration
@pytest.mark.slow
async def test_a_stopped_parents_ranks_are_killed_by_order(shared_etcd: EtcdServer) -> None:
    async with EtcdStore((shared_etcd.endpoint,), timeout_s=3.0) as store:
        with parent(spec(shared_etcd.url, "a", ttl_s=TTL_S, cluster=CLUSTER)) as stopped:
            (rank,) = stopped.wait_registered()["ranks"]
            for pid in (rank, stopped.process.pid):
                os.kill(pid, signal.SIGSTOP)
            decide = partial(ordering.end, by="test")
            given = await give_order(store, Keyspace(cluster=CLUSTER), "d0", decide)
            assert isinstance(given.decision, Give)
            await eventually(partial(has_ended, rank), TTL_S / 3 + 3, "the rank is killed")

            async def withdrawn() -> DepartureRecord | None:
                found = await records(store, CLUSTER)
                departure = found.get("departures/d0")
                gone = "instances/d0" not in found and "ranks/d0/0.0.0" not in found
                return departure if gone and isinstance(departure, DepartureRecord) else None

            departure = await eventually(withdrawn, 3, "withdrawn")
            assert departure is not None
            assert (departure.incarnation, departure.reason) == ("a", "ordered")


@pytest.mark.unit
async def test_a_parent_is_killed_by_its_pidfd() -> None:
    process = rank_process(None)
    with Processes(10, SystemClock(), on_change=lambda: None) as processes:
        processes.kill_parent()  # nobody yet
        processes.watch(PARENT, machine.open_pidfd(process.pid))
        assert processes.kill_ranks() == ()
        processes.kill_parent()
        await eventually(lambda: PARENT in processes.exited, 5)
        processes.kill_parent()  # nobody any more
    assert process.wait(5) == -signal.SIGKILL
