"""Writers in situations of their own: what they do, what they say."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdcore.errors import StoreUnavailable
from pdcore.registry.journal.entries import Changes, Entry, Gap, Piece
from pdcore.registry.journal.reader import JournalReader, NotKept
from pdcore.registry.journal.writer import BEFORE
from pdcore.registry.store import Delete, Put
from pdcore.topology.keys import STORE_ID, router
from tests.registry.journal.model import Journal, ModelStream
from tests.registry.journal.simulation import KEYSPACE, MOST_TURNS, VIEW, World, turns

pytestmark = pytest.mark.unit


class Scene(World):
    """A world with one journal, in good weather."""

    def __init__(self, writers: int = 1) -> None:
        self.stream = ModelStream()
        super().__init__(Random(1), lambda _: self.stream, writers)
        for weather in self.weathers:
            weather.bad = False

    async def put(self, name: str) -> int:
        await self.commit(Put(VIEW + router(name), b"x"))
        return self.last

    async def entries(self) -> list[Entry]:
        return [entry async for entry in self.stream.entries(0)]

    async def gaps(self) -> list[str]:
        return [entry.reason for entry in await self.entries() if isinstance(entry, Gap)]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        for _ in range(MOST_TURNS):
            if holds():
                return
            await turns(1)
        raise AssertionError(f"never {what}")

    async def until_written(self, revision: int) -> None:
        def written() -> bool:
            return all(writer.statistics().revision >= revision for writer in self.writers)

        await self.until(written, f"written up to {revision}")


def warnings(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [f"{line['event']}: {line['reason']}" for line in logs if line["log_level"] == "warning"]


async def test_every_revision_is_one_entry_with_its_time_and_predecessor() -> None:
    scene = Scene()
    async with scene.running():
        await scene.until_written(scene.last)
        first = scene.last
        second = await scene.put("a")
        await scene.commit(Put(KEYSPACE.side + "claims/p0", b"not followed"))
        await scene.commit(Put(VIEW + router("b"), b"y"), Delete(VIEW + router("a")))
        await scene.until_written(scene.last)
    begin, snapshot, one, two = await scene.entries()
    assert isinstance(begin, Gap)
    assert (begin.reason, begin.after, begin.revision) == (BEFORE, 0, first)
    assert isinstance(snapshot, Piece)
    assert isinstance(one, Changes)
    assert isinstance(two, Changes)
    assert (one.revision, one.after, two.after) == (second, first, second)
    assert {change.key: change.raw for change in two.changes} == {"routers/a": None, "routers/b": b"y"}
    assert abs(two.time_ms / 1000 - scene.clock.wall()) < 60


async def test_a_restart_after_compaction_of_foreign_revisions_is_no_gap() -> None:
    scene = Scene()
    async with scene.running():
        await scene.until_written(scene.last)
        for _ in range(20):
            await scene.commit(Put(KEYSPACE.side + "rooms/1", b"1"))
        position = (await scene.store.list("")).revision
        await scene.until_written(position)
        await scene.until(lambda: scene.stream.journal.passed is not None, "noted as passed")
        scene.store.compact(position)
        await scene.restart(0)
        await scene.put("a")
        await scene.until_written(scene.last)
    assert await scene.gaps() == [BEFORE]


async def test_a_store_that_went_back_is_told_and_then_a_gap() -> None:
    scene = Scene()
    with capture_logs() as logs:
        async with scene.running():
            for _ in range(10):
                await scene.put("a")
            await scene.until_written(scene.last)
            ahead = scene.last
            scene.store.wipe()  # and restored: the same id, fewer revisions
            await scene.store.commit((), (Put(VIEW + STORE_ID, b'"s1"'),))
            await scene.until(lambda: "its journal at" in str(scene.writers[0].statistics().error), "behind")
            while (await scene.store.list("")).revision <= ahead:
                await scene.commit(Put(VIEW + router("b"), b"y"))
            await scene.until_written(scene.last)
            await scene.put("c")
            await scene.until_written(scene.last)
    assert await scene.gaps() == [BEFORE, "the store went back, as one restored from a snapshot does"]
    assert len([line for line in warnings(logs) if "its journal at" in line]) <= 3


async def test_what_one_writer_was_not_handed_another_one_notices() -> None:
    scene = Scene(writers=2)
    async with scene.running():
        await scene.until_written(scene.last)
        dropped = (await scene.store.list("")).revision + 1
        scene.weathers[0].drop = dropped
        scene.weathers[1].stalled = True
        await scene.put("a")
        await scene.put("b")
        await scene.until(lambda: scene.writers[0].statistics().revision >= scene.last, "the first is done")
        scene.weathers[1].stalled = False
        await turns(2000)
        await scene.put("c")
        await scene.until(lambda: sum(one.statistics().gaps_total for one in scene.writers) == 2, "noticed")
    assert dropped not in {entry.revision for entry in await scene.entries() if isinstance(entry, Changes)}
    assert (await scene.gaps())[-1] == f"revision {dropped} was left out"


async def test_a_lost_tail_is_written_again_from_the_store() -> None:
    scene = Scene(writers=2)
    async with scene.running():
        await scene.put("a")
        await scene.until_written(scene.last)
        before = scene.stream.journal.copy()
        for name in "bcd":
            await scene.put(name)
        await scene.until_written(scene.last)
        whole = [place for place, _ in scene.stream.journal.lines]
        scene.stream.journal = before
        await scene.put("e")
        await scene.until(lambda: len(scene.stream.journal.lines) > len(whole), "refilled")
    assert [place for place, _ in scene.stream.journal.lines[: len(whole)]] == whole
    assert await scene.gaps() == [BEFORE]


async def test_what_was_noted_as_passed_says_nothing_about_a_journal_that_lost_its_tail() -> None:
    scene = Scene()
    async with scene.running():
        await scene.until_written(scene.last)
        before = scene.stream.journal.copy()
        told = [await scene.put(name) for name in "bcd"]
        await scene.commit(Put(KEYSPACE.side + "rooms/1", b"1"))
        position = (await scene.store.list("")).revision

        def passed() -> bool:
            noted = scene.stream.journal.passed
            return noted is not None and noted.revision >= position

        await scene.until(passed, "noted as passed")
        scene.stream.journal = Journal(before.lines, scene.stream.journal.passed)
        await scene.restart(0)
        told.append(await scene.put("e"))
        await scene.until_written(scene.last)
    assert [entry.revision for entry in await scene.entries() if isinstance(entry, Changes)] == told
    assert await scene.gaps() == [BEFORE]


async def test_a_journal_that_vanished_begins_again() -> None:
    scene = Scene()
    async with scene.running():
        await scene.put("a")
        await scene.until_written(scene.last)
        scene.stream.journal = Journal()
        await scene.put("b")
        await scene.until(lambda: bool(scene.stream.journal.lines), "begun again")
    assert await scene.gaps() == [BEFORE]


async def test_trouble_is_logged_once_and_shown_until_it_is_over() -> None:
    class Away(ModelStream):
        away = True

        async def newest(self, at_most: int | None = None) -> Entry | None:
            if self.away:
                raise StoreUnavailable("redis at h:1: away")
            return await super().newest(at_most)

    scene = Scene()
    scene.stream = stream = Away()
    with capture_logs() as logs:
        async with scene.running():
            await scene.until(lambda: "away" in str(scene.writers[0].statistics().error), "seen")
            await turns(2000)
            stream.away = False
            await scene.until_written(scene.last)
            await scene.until(lambda: scene.writers[0].statistics().error is None, "over")
    assert warnings(logs)[0] == "the journal is not written: redis at h:1: away"
    assert len([line for line in warnings(logs) if "away" in line]) == 1


async def test_a_store_without_an_id_has_no_journal_yet() -> None:
    scene = Scene()
    async with scene.running():
        scene.store.wipe()
        await scene.until(
            lambda: scene.writers[0].statistics().error == "the store has no id yet", "without an id"
        )
        await scene.identify()
        await scene.until(lambda: scene.writers[0].statistics().error is None, "writing")


async def test_old_segments_go_and_a_snapshot_stays_at_the_start() -> None:
    scene = Scene()
    async with scene.running():
        for _ in range(120):
            await scene.put("a")
        await scene.until_written(scene.last)
    entries = await scene.entries()
    assert len([entry for entry in entries if isinstance(entry, Changes)]) < 60
    assert isinstance(entries[1], Piece)
    reader = JournalReader(scene.stream)
    assert (await reader.replayed(entries[0].revision)).based
    with pytest.raises(NotKept):
        await reader.replayed(entries[0].revision - 1)


async def test_the_journal_knows_the_view_at_a_time() -> None:
    scene = Scene()
    async with scene.running():
        await scene.until_written(scene.last)
        times = {}
        for number in range(30):
            scene.clock.time += 10
            await scene.put(f"r{number}")
            await scene.until_written(scene.last)
            times[number] = round(scene.clock.wall() * 1000)
    reader = JournalReader(scene.stream)
    for number, time_ms in times.items():
        replayer, surpassed = await reader.replayed_at(time_ms)
        assert set(replayer.keys) == {STORE_ID, *(router(f"r{seen}") for seen in range(number + 1))}
        assert surpassed == (number < 29)
    with pytest.raises(NotKept, match="does not reach back"):
        await reader.replayed_at(1)
    end = await reader.end()
    assert end is not None
    assert end.revision >= scene.last
