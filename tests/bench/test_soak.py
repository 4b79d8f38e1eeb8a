"""The soak at a small size: its bounds on tasks, threads and descriptors hold, and it sees what grows."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from bench.growth import Growth, slope_of
from bench.soak import Sizes, soak

pytestmark = pytest.mark.integration


@pytest.mark.cluster
async def test_lives_leave_nothing_behind(tmp_path: Path) -> None:
    figures = await soak(tmp_path, Sizes(cycles=16, rooms=400, processes=1))
    kept = [one for one in figures if one.name.endswith("most less least")]
    assert len(kept) == 9
    assert [(one.name, one.value) for one in kept if one.value] == []


async def test_a_task_left_behind_breaks_the_bound() -> None:
    growth = Growth("leak", 4, io.StringIO(), settle_s=0.1)
    async with asyncio.TaskGroup() as group:
        left = []
        for _ in range(4):
            left.append(group.create_task(asyncio.Event().wait()))
            await growth.look(1)
        found = {one.name: one for one in growth.figures(None)}
        for task in left:
            task.cancel()
    tasks = found["leak: tasks, most less least"]
    assert tasks.value == 3
    assert not tasks.met
    assert found["leak: descriptors, most less least"].met


def test_the_slope_is_that_of_the_line_that_fits_best() -> None:
    assert slope_of([(1, 10), (2, 12), (3, 14)]) == 2
    assert slope_of([(1, 0), (2, 4), (3, 2)]) == 1
    assert slope_of([(1, 5)]) == 0
