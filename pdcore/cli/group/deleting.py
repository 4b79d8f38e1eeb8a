"""``pdcore group delete``: end a group, and see it go."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from pdcore.cli.group.watching import (
    LOOK_S,
    NO_WAIT,
    WAIT_S,
    check_name,
    followed,
    tell_by_hand,
    telling_conflicts,
)
from pdcore.cli.terminal import reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.errors import ConfigError, PdcoreError
from pdcore.group.control import applying
from pdcore.group.control.applying import UnknownGroup
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.seen import Seen
from pdcore.group.control.writing import GroupWriter
from pdcore.registry.connect import open_store
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

MOST_NAMED: Final = 8


@click.command()
@click.argument("group", metavar="GROUP")
@options(COMMON)
@click.option("--yes", is_flag=True, help="Do it. Without it nothing happens.")
@click.option(
    "--drain-limit-s", type=click.FloatRange(0, 86400), metavar="SECONDS", help="How long members may finish."
)
@click.option(
    "--within-s",
    type=click.FloatRange(0.1, 86400),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it is gone; exit status 1 if it is not by then.",
)
@NO_WAIT
@click.option("--wait", is_flag=True, hidden=True)
def delete(
    group: str,
    yes: bool,
    drain_limit_s: float | None,
    within_s: float,
    no_wait: bool,
    wait: bool,
    **flags: str | None,
) -> None:
    """End a group: its members finish what they hold and leave, then its spec and generations go.

    Returns when it is gone, and says on standard error who has still to leave.
    """
    with telling_conflicts("pdcore group delete"):
        if not yes:
            raise ConfigError(f"this ends every member of {group} and forgets its spec; say --yes to do it")
        config = load(CommonConfig, COMMON, flags, section="group")
        check_name(group)
        with reading_store(config.store):
            asyncio.run(_delete(config, group, drain_limit_s, None if no_wait and not wait else within_s))


async def _delete(
    config: CommonConfig, group: str, drain_limit_s: float | None, within_s: float | None
) -> None:
    keyspace = Keyspace(cluster=config.cluster)
    async with open_store(config.store_access) as store:
        standing = await applying.delete(store, keyspace, group, drain_limit_s)
        click.echo(f"group {group} ends; its members finish what they hold")
        if standing.plan is not None:
            running = standing.generations.get(standing.plan.active)
            tell_by_hand(running, group, standing.plan, "deleting it")
        if within_s is not None:
            await _wait_gone(config, store, group, within_s)
            click.echo(f"group {group} is gone")


async def _wait_gone(config: CommonConfig, store: Store, group: str, within_s: float) -> None:
    left: tuple[str, ...] = ()
    try:
        async with asyncio.timeout(within_s), followed(config, store, group) as follower:
            said = None
            while (seen := follower.seen()) is not None:
                left = _left(seen)
                if left != said:
                    said = left
                    click.echo(_sentence(group, left), err=True)
                if seen.plan.ending and not left and not follower.slots.held:
                    await _erase(config, store, follower, seen)
                await follower.wait_news(LOOK_S)
    except UnknownGroup:
        return
    except TimeoutError:
        raise PdcoreError(f"{group} is not gone after {within_s:g} s: {_sentence(group, left)}") from None


def _left(seen: Seen) -> tuple[str, ...]:
    """The members of which something is still there."""
    return tuple(
        one.name_in(seen.group) for one in sorted({*seen.plan.known, *seen.slots}) if seen.is_there(one)
    )


async def _erase(config: CommonConfig, store: Store, follower: GroupFollower, seen: Seen) -> None:
    """Do what the supervisors of its members would: of a group that nobody runs there are none."""
    writer = GroupWriter(store, Keyspace(cluster=config.cluster), follower.group)
    await writer.erase(seen.revision, seen.topology.groups[follower.group])


def _sentence(group: str, left: tuple[str, ...]) -> str:
    if not left:
        return f"{group}: nobody has still to leave"
    named = ", ".join(left[:MOST_NAMED]) + (" …" if len(left) > MOST_NAMED else "")
    return f"{group}: {len(left)} still to leave: {named}"
