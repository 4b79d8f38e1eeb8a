"""``pdcore group status``: what state a group is in, and why."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import click
import httpx

from pdcore import __version__
from pdcore.cli.group.watching import check_name, followed
from pdcore.cli.pass_key import PassKey
from pdcore.cli.terminal import console, failing_in_one_line, reading_store
from pdcore.config import load, options
from pdcore.config.operator import OPERATOR, OperatorConfig
from pdcore.group.control import status as shown
from pdcore.group.control.asking import Asking
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.status import Status
from pdcore.registry.connect import open_store

EVERY_S: Final = 2.0
ASK_S: Final = 3.0


@click.command()
@click.argument("group", metavar="GROUP")
@options(OPERATOR)
@click.option("--json", "as_json", is_flag=True, help="One JSON document; with --watch one a line.")
@click.option("--watch", is_flag=True, help="Again whenever something changes, until Ctrl-C.")
def status(group: str, as_json: bool, watch: bool, **flags: str | None) -> None:
    """Show a group: its state and what it waits for, every member, whether a saved spec waits for a restart."""
    with failing_in_one_line("pdcore group status"):
        config = load(OperatorConfig, OPERATOR, flags, section="group")
        check_name(group)
        with reading_store(config.store):
            asyncio.run(_show(config, group, as_json=as_json, watch=watch))


async def _show(config: OperatorConfig, group: str, *, as_json: bool, watch: bool) -> None:
    key = PassKey.of(config)
    async with (
        open_store(config.store_access) as store,
        followed(config, store, group) as follower,
        key.client(ASK_S) as client,
    ):
        said: dict[str, object] = {}
        while (now := await _status(follower, client)) is not None:
            document: dict[str, object] = dict(shown.document(now))
            if document != said:
                said = document
                _print(now, as_json=as_json, watch=watch)
            if not watch:
                return
            await follower.wait_news(EVERY_S)


async def _status(follower: GroupFollower, client: httpx.AsyncClient) -> Status | None:
    """The group's status now; None once it was deleted."""
    seen = follower.seen()
    if seen is None:
        return None
    load_of = await Asking(client).load(seen.topology)
    return shown.status_of(seen, __version__, load_of)


def _print(now: Status, *, as_json: bool, watch: bool) -> None:
    if as_json:
        click.echo(json.dumps(shown.document(now), indent=None if watch else 2))
    else:
        console().print(shown.table(now))
