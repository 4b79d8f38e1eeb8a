"""``pdcore topology``: what is registered now."""

from __future__ import annotations

import asyncio
import json

import click

from pdcore.cli.terminal import console, failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, StoreAccess, load, options
from pdcore.group.overview import document, table
from pdcore.registry.connect import open_store
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology, build


@click.group(invoke_without_command=True)
@options(COMMON)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.pass_context
def topology(context: click.Context, /, as_json: bool, **flags: str | None) -> None:
    """Show which instances and routers are registered, and why one is not ready."""
    if context.invoked_subcommand is not None:
        return
    with failing_in_one_line("pdcore topology"):
        config = load(CommonConfig, COMMON, flags, section="topology")
        with reading_store(config.store):
            read = asyncio.run(read_topology(config.store_access, config.cluster))
    if as_json:
        click.echo(json.dumps(document(read, store=config.store, cluster=config.cluster), indent=2))
    else:
        console().print(table(read, cluster=config.cluster))


async def read_topology(access: StoreAccess, cluster: str) -> Topology:
    """The cluster's keys, read once."""
    view = Keyspace(cluster=cluster).view
    async with open_store(access) as opened:
        snapshot = await opened.list(view)
    listed = {key.removeprefix(view): stored for key, stored in snapshot.entries.items()}
    return build(listed, snapshot.revision)
