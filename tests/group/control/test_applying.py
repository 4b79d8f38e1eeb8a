"""Commands against a store: what is written, what is refused, and what happens when two come at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pdcore.errors import ConfigError
from pdcore.group.control import applying
from pdcore.group.control.applying import UnknownGroup
from pdcore.group.control.changing import Conflict, Restarting
from pdcore.group.control.following import seen_in
from pdcore.group.control.generation import generation_of
from pdcore.group.control.members import Member
from pdcore.group.control.plan import RestartKind
from pdcore.group.control.slots import SlotWord
from pdcore.group.control.writing import GroupWriter
from pdcore.group.spec import GroupSpec
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Put
from pdcore.topology import keys
from pdcore.topology.keys import Keyspace
from tests.group.control.world import GROUP, spec

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")


def asked(kind: RestartKind = "stop-start") -> Restarting:
    return Restarting(kind=kind, by="me", proof="secret", deadline_s=60.0)


async def applied(store: MemoryStore, of: GroupSpec | None = None, **how: Any) -> applying.Applied:
    return await applying.apply(store, SPACE, of or spec(), **how)


async def view(store: MemoryStore) -> dict[str, Any]:
    listed = (await store.list(SPACE.view)).entries
    return {key.removeprefix(SPACE.view): json.loads(stored.value) for key, stored in listed.items()}


async def test_a_new_group_gets_its_first_generation_and_the_spec_as_it_was_written() -> None:
    async with MemoryStore() as store:
        first = await applied(store)
        assert (first.created, first.stale, first.running) == (True, False, 1)
        written = await view(store)
        assert set(written) == {f"groups/{GROUP}/{name}" for name in ("spec", "desired", "generations/1")}
        assert written[f"groups/{GROUP}/spec"] == {**spec().document, "v": 1}
        assert written[f"groups/{GROUP}/desired"]["replicas"] == {"prefill": 2, "decode": 1, "router": 1}
        assert written[f"groups/{GROUP}/generations/1"]["roles"]["prefill"]["backend"] == "pdcore"


async def test_saving_a_change_makes_no_generation_and_scales_only_what_was_edited() -> None:
    async with MemoryStore() as store:
        await applied(store)
        await applying.scale(store, SPACE, GROUP, {"decode": 4})
        changed = await applied(store, spec(prefill=3, backend_parameters=["--max-batch=8"]))
        assert (changed.created, changed.changed, changed.stale) == (False, True, True)
        assert changed.plan.replicas == {"prefill": 3, "decode": 4, "router": 1}
        assert "groups/chat/generations/2" not in await view(store)
        back = await applied(store, spec(prefill=3))
        assert not back.stale


async def test_who_only_starts_a_group_does_not_save_over_it() -> None:
    async with MemoryStore() as store:
        assert (await applied(store, only_new=True)).created
        other = await applied(store, spec(backend_parameters=["--max-batch=8"]), only_new=True)
        assert (other.created, other.changed) == (False, True)
        assert (await view(store))[f"groups/{GROUP}/spec"] == {**spec().document, "v": 1}


@pytest.mark.parametrize("kind", ["stop-start", "blue-green"])
async def test_a_restart_freezes_what_is_saved_now(kind: RestartKind) -> None:
    async with MemoryStore() as store:
        await applied(store)
        await applied(store, spec(backend_parameters=["--max-batch=8"]))
        _, generation = await applying.restart(store, SPACE, GROUP, asked(kind))
        assert (generation.number, generation.roles["decode"].parameters) == (2, ("--max-batch=8",))
        standing = await applying.read(store, SPACE, GROUP)
        assert generation_of(standing.topology.groups[GROUP].generations[2]) == generation
        assert standing.plan is not None
        assert (standing.plan.active, standing.plan.candidate) == (
            (2, None) if kind == "stop-start" else (1, 2)
        )
        with pytest.raises(Conflict, match="is under way"):
            await applying.restart(store, SPACE, GROUP, asked())


async def test_of_two_restarts_at_once_one_is_a_conflict() -> None:
    async with MemoryStore() as store:
        await applied(store)
        both = await asyncio.gather(
            *(applying.restart(store, SPACE, GROUP, asked()) for _ in range(2)), return_exceptions=True
        )
        assert sorted(isinstance(one, Conflict) for one in both) == [False, True]


async def test_commands_that_change_different_things_at_once_all_count() -> None:
    async with MemoryStore() as store:
        await applied(store)
        await asyncio.gather(
            applying.scale(store, SPACE, GROUP, {"prefill": 5}),
            applying.scale(store, SPACE, GROUP, {"decode": 6}),
            applied(store, spec(description="told")),
        )
        standing = await applying.read(store, SPACE, GROUP)
        assert standing.plan is not None
        assert standing.plan.replicas == {"prefill": 5, "decode": 6, "router": 1}
        assert standing.spec is not None
        assert standing.spec.description == "told"


async def test_an_unknown_group_is_named_with_the_known_ones() -> None:
    async with MemoryStore() as store:
        await applied(store)
        with pytest.raises(UnknownGroup, match="there is no group chatt; known are chat"):
            await applying.scale(store, SPACE, "chatt", {"prefill": 1})


async def test_a_plan_that_nobody_can_read_is_left_alone() -> None:
    async with MemoryStore() as store:
        await applied(store)
        broken = {**(await view(store))[f"groups/{GROUP}/desired"], "members": "everybody"}
        value = json.dumps(broken).encode()
        await store.commit((), (Put(SPACE.view + keys.desired(GROUP), value),))
        with pytest.raises(ConfigError, match="cannot be acted on"):
            await applied(store)
        assert (await view(store))[f"groups/{GROUP}/desired"] == broken


async def test_a_custom_group_has_no_candidates_and_says_what_is_done_by_hand() -> None:
    roles = [
        {"name": "prefill", "run_command": "p"},
        {"name": "decode", "run_command": "d"},
        {"name": "router", "run_command": "r"},
    ]
    own = spec(disaggregation={"mode": "custom"}, backend="custom", roles=roles)
    async with MemoryStore() as store:
        await applied(store, own)
        with pytest.raises(ConfigError, match="do not register"):
            await applying.restart(store, SPACE, GROUP, asked("blue-green"))
        standing = await applying.read(store, SPACE, GROUP)
        assert standing.generations[1].is_manual


async def test_a_group_is_erased_whole_and_can_be_made_again() -> None:
    async with MemoryStore() as store:
        await applied(store)
        standing = await applying.delete(store, SPACE, GROUP, None)
        writer = GroupWriter(store, SPACE, GROUP)
        group = standing.topology.groups[GROUP]
        assert standing.revision is not None
        assert not await writer.erase(standing.revision, group), "the plan was changed since"
        now = await applying.read(store, SPACE, GROUP)
        assert now.revision is not None
        assert now.plan is not None
        assert now.plan.ending
        assert await writer.erase(now.revision, group)
        assert await view(store) == {}
        assert (await applied(store)).created


async def test_slots_are_claimed_all_or_none_and_only_for_the_plan_that_was_seen() -> None:
    async with MemoryStore() as store:
        await applied(store)
        standing = await applying.read(store, SPACE, GROUP)
        seen = seen_in(standing.topology, GROUP, {}, 0.0)
        assert seen is not None
        writer, lease, word = (
            GroupWriter(store, SPACE, GROUP),
            await store.grant(60),
            SlotWord(supervisor="a"),
        )
        two = [Member(1, "prefill", 1), Member(1, "decode", 1)]
        assert await writer.claim(seen, two[:1], word, lease)
        assert not await writer.claim(seen, two, word, lease)
        assert len((await store.list(SPACE.members(GROUP))).entries) == 1
        await applying.scale(store, SPACE, GROUP, {"prefill": 3})
        assert not await writer.claim(seen, two[1:], word, lease), "it was decided on an older plan"
