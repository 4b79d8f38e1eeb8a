"""``pdcore events``: what happened, one event per line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import click

from pdcore import telemetry
from pdcore.cli.event_lines import document_lines, lines
from pdcore.cli.past import Past, open_past
from pdcore.cli.terminal import failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.errors import StoreUnavailable
from pdcore.registry.follower import Follower
from pdcore.registry.history import Told
from pdcore.router.revision import HIGHEST_REVISION
from pdcore.topology.events import Event
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology

MOST_UNSHOWN: Final = 10_000
Show = Callable[[Told], None]


@click.command()
@options(COMMON)
@click.option(
    "--since",
    type=click.IntRange(0, HIGHEST_REVISION),
    metavar="REVISION",
    help="Only what happened after this revision; without it everything that is kept, or with -f what comes.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def events(since: int | None, follow: bool, as_json: bool, **flags: str | None) -> None:
    """Show what happened in a cluster: who joined, got ready, was lost and why.

    The store knows until it compacts; with --redis the journal knows more, and when it was. Where the single steps
    are not known any more, a line says so and what differs is marked as coalesced.
    """

    def show(told: Told) -> None:
        for line in document_lines(told) if as_json else lines(told):
            click.echo(line)

    with failing_in_one_line("pdcore events"):
        config = load(CommonConfig, COMMON, flags, section="events")
        telemetry.configure(config.log_format, config.log_level)
        with reading_store(config.store):
            asyncio.run(_follow(config, since, show) if follow else _show_kept(config, since, show))


async def _show_kept(config: CommonConfig, since: int | None, show: Show) -> None:
    async with open_past(config) as past:
        async with aclosing(past.history.since(since)) as kept:
            async for told in kept:
                show(told)


async def _follow(config: CommonConfig, since: int | None, show: Show) -> None:
    """What is kept, then what comes; the follower is there first, so that nothing falls between."""
    keyspace = Keyspace(cluster=config.cluster)
    async with open_past(config) as past, Follower(past.store, keyspace) as follower:
        await _wait_synced(follower, config.store_timeout_s)
        unshown = Unshown()
        follower.subscribe(unshown.add)
        shown = 0 if since is None else await _show_past(past, since, show)
        while True:
            told = await unshown.next()
            if told.revision > shown or told.lost is not None:
                show(told)
                shown = 0  # from here on all is new, also where a store begins again from 1


async def _wait_synced(follower: Follower, timeout_s: float) -> None:
    try:
        await follower.wait_until(lambda _: True, timeout_s)
    except TimeoutError as late:
        raise StoreUnavailable(follower.last_error or "no answer in time") from late


async def _show_past(past: Past, since: int, show: Show) -> int:
    """Show what happened since; the revision up to which that was."""
    shown = since
    async with aclosing(past.history.since(since)) as kept:
        async for told in kept:
            show(told)
            shown = told.revision
    return shown


class Unshown:
    """What a follower tells until somebody shows it. Too much of it is dropped, and that is told instead."""

    def __init__(self, most: int = MOST_UNSHOWN) -> None:
        self._told: asyncio.Queue[Told] = asyncio.Queue(most)
        self._dropped = 0

    def add(self, events: tuple[Event, ...], topology: Topology) -> None:
        """What happened just now, and the view after it."""
        lost = "the store was listed again" if any(event.coalesced for event in events) else None
        if self._dropped:
            lost = f"{self._dropped} steps were dropped: nobody read fast enough"
        told = Told(
            revision=topology.revision,
            time_ms=round(time.time() * 1000),
            events=events,
            topology=topology,
            lost=lost,
        )
        try:
            self._told.put_nowait(told)
            self._dropped = 0
        except asyncio.QueueFull:
            self._dropped += 1

    async def next(self) -> Told:
        """The oldest of them."""
        return await self._told.get()
