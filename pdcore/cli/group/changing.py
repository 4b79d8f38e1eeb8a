"""``pdcore group scale`` and ``restart``: change what runs of a group."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping
from typing import Final

import click

from pdcore.cli.group.watching import (
    NO_WAIT,
    WAIT_S,
    check_name,
    followed,
    tell_by_hand,
    tell_if_nobody_runs,
    telling_conflicts,
    wait_until,
)
from pdcore.cli.terminal import FAILED, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.errors import ConfigError
from pdcore.group.control import applying, changing
from pdcore.group.control.changing import CANDIDATE_S, Restarting
from pdcore.group.control.members import MemberRole
from pdcore.group.control.plan import RestartKind
from pdcore.group.control.seen import Seen
from pdcore.group.control.state import is_ready
from pdcore.registry.connect import open_store
from pdcore.registry.operator import operator
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

_COUNT: Final = click.IntRange(1, 512)


@click.command()
@click.argument("group", metavar="GROUP")
@options(COMMON)
@click.option("--prefill", type=_COUNT, metavar="N", help="Prefill members.")
@click.option("--decode", type=_COUNT, metavar="N", help="Decode members.")
@click.option("--router", type=_COUNT, metavar="N", help="Routers.")
@click.option("--undo", is_flag=True, help="Have everybody back who is on the way out.")
@click.option(
    "--drain-limit-s",
    type=click.FloatRange(0, 86400),
    metavar="SECONDS",
    help="How long a member may finish.",
)
@click.option("--wait", is_flag=True, help=f"Return when it has happened (at most {WAIT_S:.0f} s).")
def scale(
    group: str,
    prefill: int | None,
    decode: int | None,
    router: int | None,
    undo: bool,
    drain_limit_s: float | None,
    wait: bool,
    **flags: str | None,
) -> None:
    """Change how many members a group has, without a restart.

    Members that leave take no new requests and end when they hold nothing more; the ones with the fewest go first.
    Scaling up again, or --undo, has them back. Exit status 9 while a restart is under way.
    """
    given: dict[MemberRole, int | None] = {"prefill": prefill, "decode": decode, "router": router}
    wished = {role: count for role, count in given.items() if count is not None}
    with telling_conflicts("pdcore group scale"):
        if bool(wished) == undo:
            raise ConfigError("say --prefill, --decode or --router with a number, or --undo alone")
        config = load(CommonConfig, COMMON, flags, section="group")
        check_name(group)
        with reading_store(config.store):
            asyncio.run(_scale(config, group, wished, undo=undo, drain_limit_s=drain_limit_s, wait=wait))


@click.command()
@click.argument("group", metavar="GROUP")
@options(COMMON)
@click.option("--blue-green", is_flag=True, help="Start the new generation beside the old, prove it, switch.")
@click.option(
    "--deadline-s",
    type=click.FloatRange(0.1, 86400),
    default=CANDIDATE_S,
    show_default=True,
    metavar="SECONDS",
    help="With --blue-green: what is not proven by then is given up.",
)
@click.option("--role", hidden=True)
@click.option("--member", hidden=True)
@NO_WAIT
def restart(
    group: str,
    blue_green: bool,
    deadline_s: float,
    role: str | None,
    member: str | None,
    no_wait: bool,
    **flags: str | None,
) -> None:
    """Restart a whole group on its saved spec: everything stops, then everything starts.

    With --blue-green nothing stops before the new generation has answered a real request and every router sends to it;
    if it does not in time, it ends and the old one stays. Exit status 9 while another restart is under way.
    """
    with telling_conflicts("pdcore group restart"):
        if role is not None or member is not None:
            raise ConfigError(changing.NO_PARTS)
        config = load(CommonConfig, COMMON, flags, section="group")
        check_name(group)
        kind: RestartKind = "blue-green" if blue_green else "stop-start"
        asked = Restarting(kind=kind, by=operator(), proof=secrets.token_urlsafe(24), deadline_s=deadline_s)
        with reading_store(config.store):
            sys.exit(asyncio.run(_restart(config, group, asked, wait=not no_wait)))


async def _scale(
    config: CommonConfig,
    group: str,
    wished: Mapping[MemberRole, int],
    *,
    undo: bool,
    drain_limit_s: float | None,
    wait: bool,
) -> None:
    async with open_store(config.store_access) as store:
        standing, plan = await applying.scale(
            store, Keyspace(cluster=config.cluster), group, wished, undo=undo, drain_limit_s=drain_limit_s
        )
        counts = ", ".join(f"{role} {count}" for role, count in plan.replicas.items())
        click.echo(f"group {group} shall have {counts}")
        tell_by_hand(standing.generations.get(plan.active), group, plan, "scaling")
        if wait:
            async with followed(config, store, group) as follower:
                tell_if_nobody_runs(follower)
                await wait_until(follower, _is_as_wished, WAIT_S, f"scaling {group}")


def _is_as_wished(seen: Seen) -> bool:
    plan = seen.plan
    if plan.leaving or any(len(plan.of(role)) != count for role, count in plan.replicas.items()):
        return False
    return all(is_ready(seen.group, one, seen.topology, seen.slots) for one in plan.members)


async def _restart(config: CommonConfig, group: str, asked: Restarting, *, wait: bool) -> int:
    async with open_store(config.store_access) as store:
        standing, generation = await applying.restart(store, Keyspace(cluster=config.cluster), group, asked)
        click.echo(f"group {group} restarts ({asked.kind}) on generation {generation.number}")
        if standing.plan is not None:
            tell_by_hand(generation, group, standing.plan, "the restart")
        return await _until_over(config, store, group, generation.number) if wait else 0


async def _until_over(config: CommonConfig, store: Store, group: str, number: int) -> int:
    async with followed(config, store, group) as follower:
        tell_if_nobody_runs(follower)
        seen = await wait_until(
            follower,
            lambda seen: seen.plan.restart is None or seen.plan.restart.to != number,
            WAIT_S,
            f"the restart of {group}",
        )
    last = seen.plan.last_restart
    if last is None or last.to != number:
        return FAILED
    why = f": {last.why}" if last.why else ""
    click.echo(
        f"the restart of {group} to generation {number} is {last.result}{why}", err=last.result != "done"
    )
    return 0 if last.result == "done" else FAILED
