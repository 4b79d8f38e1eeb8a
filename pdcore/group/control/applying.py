"""Commands on a group, against the store: read what stands, decide, write it only if that still stands, else again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pdcore import __version__
from pdcore.errors import ConfigError, StoreUnavailable
from pdcore.group.control import changing
from pdcore.group.control.changing import Restarting
from pdcore.group.control.following import generations_of
from pdcore.group.control.generation import Generation, frozen, wanted
from pdcore.group.control.members import MemberRole
from pdcore.group.control.plan import Plan, Unreadable, plan_of
from pdcore.group.control.writing import GroupWriter
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.render.frozen_choices import frozen_choices
from pdcore.group.spec import GroupSpec, spec_of
from pdcore.group.validation.check import check
from pdcore.registry.store import Absent, Condition, ModRevisionIs, Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DocumentRecord
from pdcore.topology.topology import Topology, build

TRIES: Final = 8
ResultT = TypeVar("ResultT")


class UnknownGroup(ConfigError):
    """There is no such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One group as it was read. ``revision`` wrote the plan, ``spec_revision`` the saved spec; None where there is none."""

    topology: Topology
    plan: Plan | None
    revision: int | None
    spec: GroupSpec | None
    spec_revision: int | None
    generations: Mapping[int, Generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What applying came to. ``created``: there was no such group; ``stale``: it waits for a restart."""

    created: bool
    changed: bool
    stale: bool
    running: int
    plan: Plan


class _Again(Exception):
    """Something changed between reading and writing."""


async def apply(store: Store, keyspace: Keyspace, spec: GroupSpec, *, only_new: bool = False) -> Applied:
    """Save ``spec``. A new group gets its first generation; otherwise nothing restarts.

    With ``only_new`` a group that is there stays as it was saved. Raises Conflict, StoreError, ConfigError.
    """
    return await _until_written(lambda: _apply(store, keyspace, spec, only_new), spec.name)


async def scale(
    store: Store,
    keyspace: Keyspace,
    group: str,
    wished: Mapping[MemberRole, int],
    *,
    undo: bool = False,
    drain_limit_s: float | None = None,
) -> tuple[Standing, Plan]:
    """Wish for other numbers of replicas, or have back who is leaving. Raises Conflict, UnknownGroup, StoreError."""

    async def once() -> tuple[Standing, Plan]:
        standing, plan, revision = await _known(store, keyspace, group)
        changed = (
            changing.undone(group, plan) if undo else changing.scaled(group, plan, wished, drain_limit_s)
        )
        await _written(GroupWriter(store, keyspace, group).revise(revision, changed))
        return standing, changed

    return await _until_written(once, group)


async def delete(store: Store, keyspace: Keyspace, group: str, drain_limit_s: float | None) -> Standing:
    """Let every member leave, and the group's keys with the last. Raises UnknownGroup, StoreError."""

    async def once() -> Standing:
        standing, plan, revision = await _known(store, keyspace, group)
        changed = changing.deleted(plan, drain_limit_s, time.time())
        await _written(GroupWriter(store, keyspace, group).revise(revision, changed))
        return standing

    return await _until_written(once, group)


async def restart(
    store: Store, keyspace: Keyspace, group: str, asked: Restarting
) -> tuple[Standing, Generation]:
    """Begin a restart on the saved spec; the new generation. Raises Conflict, UnknownGroup, StoreError."""

    async def once() -> tuple[Standing, Generation]:
        standing, plan, revision = await _known(store, keyspace, group)
        if standing.spec is None:
            raise UnknownGroup(
                f"group {group} has no saved spec that can be read; pdcore group apply saves one"
            )
        number = changing.next_number(standing.topology.groups[group].generations)
        changed = changing.restarted(group, plan, number, asked, time.time())
        generation = _generation(standing.spec, number)
        if asked.kind == "blue-green" and generation.mode == "custom":
            raise ConfigError(changing.NOT_PROVABLE)
        await _written(GroupWriter(store, keyspace, group).revise(revision, changed, generation))
        return standing, generation

    return await _until_written(once, group)


async def read(store: Store, keyspace: Keyspace, group: str) -> Standing:
    """What stands of ``group``. Raises StoreError, and ConfigError for a plan that cannot be read."""
    snapshot = await store.list(keyspace.view)
    listed = {key.removeprefix(keyspace.view): stored for key, stored in snapshot.entries.items()}
    return standing_in(build(listed, snapshot.revision), group)


def standing_in(topology: Topology, group: str) -> Standing:
    """The same from a view. Raises ConfigError for a plan that cannot be read."""
    found = topology.groups.get(group)
    desired, spec = topology.entry(keys.desired(group)), topology.entry(keys.spec(group))
    try:
        plan = None if found is None or found.desired is None else plan_of(found.desired)
    except Unreadable as wrong:
        raise ConfigError(str(wrong)) from wrong
    return Standing(
        topology=topology,
        plan=plan,
        revision=None if desired is None else desired.mod_revision,
        spec=None if found is None else saved_spec(found.spec),
        spec_revision=None if spec is None else spec.mod_revision,
        generations={} if found is None else generations_of(found),
    )


def saved_spec(record: DocumentRecord | None) -> GroupSpec | None:
    """The spec that was saved, None for none that this version can read."""
    if record is None:
        return None
    try:
        return spec_of(dict(record.document))
    except ConfigError:
        return None


async def _apply(store: Store, keyspace: Keyspace, spec: GroupSpec, only_new: bool) -> Applied:
    standing = await read(store, keyspace, spec.name)
    first = standing.plan is None
    plan, new = _changed(standing, spec)
    running = standing.generations.get(plan.active)
    applied = Applied(
        created=first,
        changed=standing.spec is None or standing.spec.document != spec.document,
        stale=running is not None and running.digest != new.digest,
        running=plan.active,
        plan=plan,
    )
    if first or not only_new:
        await _save(store, keyspace, standing, spec, plan, new)
    return applied


def _changed(standing: Standing, spec: GroupSpec) -> tuple[Plan, Generation]:
    """The plan with ``spec`` saved, and ``spec`` frozen as the generation that runs, or as the first."""
    if standing.plan is None:
        found = standing.topology.groups.get(spec.name)
        plan = changing.first_plan(
            wanted(spec), changing.next_number({} if found is None else found.generations)
        )
        return plan, _generation(spec, plan.active)
    before = None if standing.spec is None else wanted(standing.spec)
    plan = changing.rescaled(spec.name, standing.plan, before, wanted(spec))
    return plan, _generation(spec, plan.active)


async def _save(
    store: Store, keyspace: Keyspace, standing: Standing, spec: GroupSpec, plan: Plan, new: Generation
) -> None:
    key = keyspace.view + keys.spec(spec.name)
    value = codec.encode(DocumentRecord(dict(spec.document)))
    for what, size in (("the spec", len(value)), ("its frozen form", len(str(new.document)))):
        if size > codec.MAX_VALUE_BYTES - 4096:
            raise ConfigError(f"{what} is {size} bytes long, more than a record may be")
    unchanged: Condition = (
        Absent(key) if standing.spec_revision is None else ModRevisionIs(key, standing.spec_revision)
    )
    writer = GroupWriter(store, keyspace, spec.name)
    generations = (new,) if standing.plan is None else ()
    await _written(writer.write(standing.revision, plan, (unchanged,), (Put(key, value),), *generations))


def _generation(spec: GroupSpec, number: int) -> Generation:
    """``spec`` frozen, with what only its model tells."""
    choices = frozen_choices(spec, catalogue().mode(spec.mode))
    return frozen(spec, number, __version__, choices, check(spec))


async def _known(store: Store, keyspace: Keyspace, group: str) -> tuple[Standing, Plan, int]:
    standing = await read(store, keyspace, group)
    if standing.plan is None or standing.revision is None:
        known = ", ".join(sorted(standing.topology.groups)) or "none"
        raise UnknownGroup(f"there is no group {group}; known are {known}")
    return standing, standing.plan, standing.revision


async def _written(writing: Awaitable[bool]) -> None:
    if not await writing:
        raise _Again


async def _until_written(once: Callable[[], Awaitable[ResultT]], group: str) -> ResultT:
    for _ in range(TRIES):
        try:
            return await once()
        except _Again:
            continue
    raise StoreUnavailable(f"group {group} changed {TRIES} times while it was being written")
