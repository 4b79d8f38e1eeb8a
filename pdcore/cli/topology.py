"""``pdcore topology``: what is registered now."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime

import click

from pdcore.cli import suspects, waiting
from pdcore.cli.event_lines import event_line
from pdcore.cli.moments import AtRevision, AtTime, parse_moment
from pdcore.cli.pass_key import PassKey
from pdcore.cli.past import open_past
from pdcore.cli.terminal import FAILED, console, failing_in_one_line, reading_store
from pdcore.cli.waiting import wait_everywhere
from pdcore.config import COMMON, CommonConfig, StoreAccess, load, options
from pdcore.config.operator import OPERATOR, OperatorConfig
from pdcore.errors import ConfigError
from pdcore.group.overview import document, table
from pdcore.registry.connect import open_store
from pdcore.router.revision import HIGHEST_REVISION, LONGEST_WAIT_S
from pdcore.topology import events
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology, build


@click.group(invoke_without_command=True)
@options(OPERATOR)
@click.option(
    "--at",
    metavar="REVISION|TIME",
    help="As it was then: a revision, an ISO 8601 time, HH:MM[:SS], or how long ago (-15m).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.pass_context
def topology(context: click.Context, /, at: str | None, as_json: bool, **flags: str | None) -> None:
    """Show which instances and routers are registered, and why one is not ready.

    The store knows its past until it compacts, and no times; with --redis the journal knows more, and when it was.
    Each router remembers its last hour.
    """
    if context.invoked_subcommand is not None:  # which heeds what was said before its name as well
        context.default_map = {context.invoked_subcommand: {k: v for k, v in flags.items() if v is not None}}
        return
    with failing_in_one_line("pdcore topology"):
        config = load(OperatorConfig, OPERATOR, flags, section="topology")
        key = PassKey.of(config)
        moment = None if at is None else parse_moment(at, datetime.now().astimezone())
        with reading_store(config.store):
            read = asyncio.run(
                read_topology(config.store_access, config.cluster)
                if moment is None
                else _read_past(config, moment, key)
            )
        doubted = {} if moment is not None else asyncio.run(suspects.read_suspects(read, key))
    if as_json:
        shown = document(read, store=config.store, cluster=config.cluster) | {"suspects": doubted}
        click.echo(json.dumps(shown, indent=2))
    else:
        console().print(table(read, cluster=config.cluster))
        for line in suspects.lines(doubted):
            click.echo(line)


@topology.command()
@options(OPERATOR)
@click.option("--revision", required=True, type=click.IntRange(1, HIGHEST_REVISION), help="What to wait for.")
@click.option(
    "--timeout-s",
    default=10.0,
    type=click.FloatRange(0.1, LONGEST_WAIT_S),
    metavar="SECONDS",
    help="How long each router may take to get there. [default: 10]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def wait(revision: int, timeout_s: float, as_json: bool, **flags: str | None) -> None:
    """Wait until every registered router knows the keyspace up to a revision; exit 1 naming those that do not."""
    with failing_in_one_line("pdcore topology wait"):
        config = load(OperatorConfig, OPERATOR, flags, section="topology")
        key = PassKey.of(config)
        with reading_store(config.store):
            read = asyncio.run(read_topology(config.store_access, config.cluster))
        rows = asyncio.run(wait_everywhere(read, revision, timeout_s, key))
        if as_json:
            click.echo(json.dumps(waiting.document(rows, revision=revision), indent=2))
        else:
            console().print(waiting.table(rows, revision=revision))
        missing = [f"{one.router_id} ({one.problem})" for one in rows if one.problem is not None]
        if missing or not rows:
            said = ", ".join(missing) or f"no router is registered in cluster {config.cluster}"
            click.echo(f"pdcore topology wait: not at revision {revision}: {said}", err=True)
            sys.exit(FAILED)


@topology.command()
@options(COMMON)
@click.argument("old", metavar="REVISION1", type=click.IntRange(1, HIGHEST_REVISION))
@click.argument("new", metavar="REVISION2", type=click.IntRange(1, HIGHEST_REVISION))
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def diff(old: int, new: int, as_json: bool, **flags: str | None) -> None:
    """Show what differs between the fleet at two revisions, as events without the steps between."""
    with failing_in_one_line("pdcore topology diff"):
        config = load(CommonConfig, COMMON, flags, section="topology")
        if old > new:
            raise ConfigError(f"REVISION1 ({old}) must not be after REVISION2 ({new})")
        with reading_store(config.store):
            before, after = asyncio.run(_read_two(config, old, new))
        differences = events.diff(before, after, coalesced=True)
        if as_json:
            shown = [event.log_fields() for event in differences]
            click.echo(json.dumps({"from": old, "to": new, "events": shown}, indent=2))
            return
        for event in differences:
            click.echo(event_line(event, None))
        if not differences:
            click.echo(f"Nothing differs between {old} and {new}.")


async def _read_past(config: CommonConfig, moment: AtRevision | AtTime, key: PassKey) -> Topology:
    async with open_past(config, key) as past:
        return await past.view(moment)


async def _read_two(config: CommonConfig, old: int, new: int) -> tuple[Topology, Topology]:
    async with open_past(config) as past:
        return await past.history.at(old), await past.history.at(new)


async def read_topology(access: StoreAccess, cluster: str) -> Topology:
    """The cluster's keys, read once."""
    view = Keyspace(cluster=cluster).view
    async with open_store(access) as opened:
        snapshot = await opened.list(view)
    listed = {key.removeprefix(view): stored for key, stored in snapshot.entries.items()}
    return build(listed, snapshot.revision)
