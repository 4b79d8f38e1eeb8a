"""The failure matrix: everything that etcd, the network and the processes do to the registry, a figure per row.

Rows mostly wait, so they run side by side; each has its own store. A row is played on a :mod:`stage
<tests.cluster.stage>` and judged by what every row must keep and what this one allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import figures, process_faults, store_faults
from tests.cluster.stage import BLIND_S, TTL_S, Result

pytestmark = [pytest.mark.cluster]

SIDE_BY_SIDE: Final = 4
LONGEST_S: Final = 150.0
BACK_S: Final = 3.0
KEYS_BACK_S: Final = TTL_S / 3 + 1
CONFIRMED_S: Final = 2.0
"""Until a reconcile has begun after a break, and has looked twice."""
Play = Callable[[Path], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. ``relists``: the difference is told coalesced; ``repairs``: how many a reconcile must make.

    ``back_s``: how long after its end, or after keys were removed, everything is as before. A ``long`` one begins early.
    """

    name: str
    play: Play
    relists: bool = False
    repairs: int = 0
    back_s: float = BACK_S
    long: bool = False


ROWS: Final = (
    *(
        Row(
            f"member {number + 1} of 3 killed (-9) and restarted",
            partial(store_faults.kill_and_restart, member=number),
        )
        for number in range(3)
    ),
    *(
        Row(
            f"member {number + 1} of 3 stopped for 20 s",
            partial(store_faults.stop_and_continue, member=number),
            long=True,
        )
        for number in range(3)
    ),
    Row("restarted with its data", store_faults.restarted_with_data),
    Row("data wiped", store_faults.data_wiped, relists=True),
    Row(
        "restored and overtaken, by the runbook",
        partial(store_faults.restored, by_the_runbook=True),
        relists=True,
    ),
    Row(
        "restored and overtaken, store_id kept",
        partial(store_faults.restored, by_the_runbook=False),
        repairs=1,
        back_s=BACK_S + CONFIRMED_S,
    ),
    Row("compacted while cut off", store_faults.compacted_while_cut_off, relists=True),
    Row("black hole on one path for 25 s", store_faults.black_hole, long=True),
    Row("a member left without quorum for 15 s", store_faults.without_quorum, long=True),
    Row("all leases revoked in 100 ms", store_faults.leases_revoked, back_s=KEYS_BACK_S),
    Row("every own key deleted with etcdctl", store_faults.keys_deleted, back_s=KEYS_BACK_S),
    Row("no space: every put refused for 7 s", store_faults.no_space),
    Row("auth switched on while running", store_faults.auth_switched_on),
    Row("tokens expired", store_faults.token_expired),
    Row(
        "one watch event dropped, then silence",
        store_faults.event_dropped,
        repairs=1,
        back_s=store_faults.RECONCILE_S + CONFIRMED_S,
    ),
    Row("registrar stopped for 2 s", partial(process_faults.registrar_stopped, seconds=2)),
    Row(
        "registrar stopped for 3 x TTL",
        partial(process_faults.registrar_stopped, seconds=3 * TTL_S),
        back_s=KEYS_BACK_S,
        long=True,
    ),
    Row(
        "an engine's Python loop of 10 s",
        partial(process_faults.parent_blocked, how="loop", seconds=10),
        long=True,
    ),
    Row(
        "a native call holding the interpreter 12 s",
        partial(process_faults.parent_blocked, how="native", seconds=12),
        long=True,
    ),
    Row("old process stopped, replaced, continued", process_faults.stopped_and_replaced),
)


Outcome = Result | BaseException


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every chosen row's result by its name, the long ones begun first."""
    chosen = [item.callspec.params["played"] for item in request.session.items if _is_row(item)]  # type: ignore[attr-defined]
    chosen.sort(key=lambda one: not one.long)
    return asyncio.run(_play_all(chosen, tmp_path_factory))


def _is_row(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.originalname == test_the_registry_survives.__name__


async def _play_all(rows: list[Row], directories: pytest.TempPathFactory) -> dict[str, Outcome]:
    limit = asyncio.Semaphore(SIDE_BY_SIDE)

    async def play(one: Row) -> Result:
        async with limit, asyncio.timeout(LONGEST_S):
            return await one.play(directories.mktemp("row"))

    results = await asyncio.gather(*map(play, rows), return_exceptions=True)
    return {one.name: result for one, result in zip(rows, results, strict=True)}


@pytest.mark.parametrize("played", ROWS, ids=lambda one: one.name.replace(" ", "-"))
def test_the_registry_survives(outcomes: dict[str, Outcome], played: Row) -> None:
    result = outcomes[played.name]
    if isinstance(result, BaseException):
        figures.show(played.name, result="did not end as it must")
        raise result
    _show(played, result)
    balance, statistics = result.balance, result.statistics
    assert (balance.lost, balance.duplicated) == (0, 0)
    assert bool(statistics.relists_total) == played.relists
    assert statistics.repairs_total == played.repairs
    assert played.relists or played.repairs or not balance.coalesced
    assert result.blind_s <= BLIND_S
    assert (result.back_s or 0.0) <= played.back_s
    assert result.registrars == 1, "no registrar was replaced"
    assert result.router_runs
    assert not result.failures, f"{len(result.failures)} of {result.asked} requests: {result.failures[:3]}"


def _show(played: Row, result: Result) -> None:
    figures.show(
        played.name,
        written=result.balance.written,
        lost=result.balance.lost,
        duplicated=result.balance.duplicated,
        coalesced=result.balance.coalesced,
        relists=result.statistics.relists_total,
        repairs=result.statistics.repairs_total,
        **{"blind s": result.blind_s, "back s": "" if result.back_s is None else result.back_s},
        requests=result.asked,
        failed=len(result.failures),
    )
