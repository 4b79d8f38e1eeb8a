"""How commands on a group see it: once, or followed until something has happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import click

from pdcore import telemetry
from pdcore.cli.terminal import failing_in_one_line
from pdcore.clock import SystemClock
from pdcore.config import CommonConfig
from pdcore.config.setting import name
from pdcore.errors import ConfigError, PdcoreError, StoreUnavailable
from pdcore.group.control.applying import UnknownGroup
from pdcore.group.control.changing import Conflict, manual_work
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.generation import Generation
from pdcore.group.control.plan import Plan
from pdcore.group.control.seen import Seen
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

CONFLICT: Final = 9
"""Exit status of a command that met something under way, as HTTP has 409."""
SYNC_S: Final = 10.0
LOOK_S: Final = 0.5
WAIT_S: Final = 1800.0
"""How long a command waits for what it has begun."""
NO_WAIT: Final = click.option(
    "--no-wait", is_flag=True, help="Return at once; pdcore group status tells how it goes."
)


@contextmanager
def telling_conflicts(command: str) -> Iterator[None]:
    """As :func:`failing_in_one_line`, with a status of its own for what cannot be done now."""
    with failing_in_one_line(command):
        try:
            yield
        except Conflict as conflict:
            click.echo(f"{command}: {conflict}", err=True)
            raise SystemExit(CONFLICT) from conflict


def check_name(group: str) -> str:
    """``group`` if it can be one. Raises ConfigError."""
    try:
        name(group)
    except ValueError as wrong:
        raise ConfigError(f"GROUP: {wrong}") from None
    return group


@asynccontextmanager
async def followed(config: CommonConfig, store: Store, group: str) -> AsyncIterator[GroupFollower]:
    """The group, followed, once it was read. Raises UnknownGroup, StoreUnavailable."""
    telemetry.configure(config.log_format, "error")  # standard output is for the answer
    follower = GroupFollower(store, Keyspace(cluster=config.cluster), group, SystemClock())
    async with follower.following():
        clock = SystemClock()
        deadline = clock.now() + SYNC_S
        while not (follower.view.synced and follower.slots.synced):
            if clock.now() >= deadline:
                raise StoreUnavailable(follower.view.last_error or "it does not answer")
            await follower.wait_news(0.05)
        if follower.seen() is None:
            known = ", ".join(sorted(follower.view.topology.groups)) or "none"
            raise UnknownGroup(f"there is no group {group}; known are {known}")
        yield follower


def tell_if_nobody_runs(follower: GroupFollower) -> None:
    """What a command waits for is done by those who run the group's members."""
    if not follower.slots.held:
        click.echo(f"nobody runs members of {follower.group} now; pdcore up FILE does", err=True)


async def wait_until(
    follower: GroupFollower, holds: Callable[[Seen], bool], within_s: float, what: str
) -> Seen:
    """The first look at which it ``holds``. Raises PdcoreError when there is none in time."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                seen = follower.seen()
                if seen is not None and holds(seen):
                    return seen
                await follower.wait_news(LOOK_S)
    except TimeoutError:
        raise PdcoreError(f"{what} has not happened within {within_s:.0f} s") from None


def tell_by_hand(generation: Generation | None, group: str, plan: Plan, doing: str) -> None:
    """Say what only a person can do, where ``doing`` it needs that."""
    work = None if generation is None else manual_work(generation, group, plan, doing)
    if work is not None:
        click.echo(work)
