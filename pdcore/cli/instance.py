"""``pdcore instance``: one instance in full, and the orders an operator gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import click

from pdcore import telemetry
from pdcore.cli.terminal import failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.config.setting import name
from pdcore.errors import ConfigError, PdcoreError
from pdcore.group import instance_view
from pdcore.registry import ordering
from pdcore.registry.claims import holder_of
from pdcore.registry.connect import open_store
from pdcore.registry.follower import Follower
from pdcore.registry.operator import Ordered, give_order, operator
from pdcore.registry.ordering import Decision, Give, Leave, Refuse, Standing, TakeBack, is_carried_out
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import OrderKind, OrderRecord
from pdcore.topology.topology import Topology, build

WAIT_S: Final = 600.0
Flags = dict[str, str | None]
CommandT = TypeVar("CommandT", bound=Callable[..., object])


@click.group()
def instance() -> None:
    """Look at one instance, stop requests from going to it, let them again, or end it."""


def _command(take: CommandT) -> CommandT:
    """What every command of this group takes."""
    take = click.option("--json", "as_json", is_flag=True, help="One JSON document.")(take)
    return options(COMMON)(click.argument("instance_id", metavar="ID")(take))


_waiting: Final = click.option(
    "--wait", is_flag=True, help=f"Return when it has happened (at most {WAIT_S:.0f} s)."
)


@instance.command()
@_command
@_waiting
@click.option("--sticky", is_flag=True, help="For every start of the instance, until it is undrained.")
def drain(instance_id: str, sticky: bool, wait: bool, as_json: bool, **flags: str | None) -> None:
    """Send no new requests to an instance; it finishes those it has and stays.

    Routers stop at the revision that is printed, the instance refuses what was on its way. Without --sticky the order
    is for the incarnation that runs now and ends with it.
    """
    decide = partial(ordering.drain, sticky=sticky, by=operator())
    _order("drain", instance_id, decide, wait=wait, as_json=as_json, flags=flags)


@instance.command()
@_command
@_waiting
def undrain(instance_id: str, wait: bool, as_json: bool, **flags: str | None) -> None:
    """Take an order to drain back, sticky or not; the instance serves again."""
    _order("undrain", instance_id, ordering.undrain, wait=wait, as_json=as_json, flags=flags)


@instance.command()
@_command
@_waiting
@click.option("--yes", is_flag=True, help="Do it: its requests are lost. Without it nothing happens.")
def end(instance_id: str, yes: bool, wait: bool, as_json: bool, **flags: str | None) -> None:
    """Have every process of the incarnation that runs now killed; it exits with status 70.

    For one that hangs: requests it holds fail. Drain first to lose none.
    """
    with failing_in_one_line("pdcore instance end"):
        if not yes:
            raise ConfigError(f"this kills every process of {instance_id}; say --yes to do it")
    _order("end", instance_id, partial(ordering.end, by=operator()), wait=wait, as_json=as_json, flags=flags)


@instance.command()
@_command
def show(instance_id: str, as_json: bool, **flags: str | None) -> None:
    """Show one instance: why it is not ready, rank by rank, the order it is under, who owns its id."""
    with failing_in_one_line("pdcore instance show"):
        config = _config(instance_id, flags)
        with reading_store(config.store):
            topology, claim = asyncio.run(_read(config, instance_id))
        known = (topology.instances, topology.departures, topology.orders)
        if claim is None and not any(instance_id in named for named in known):
            close = ordering.similar(instance_id, topology.instances)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigError(f"nothing is known of {instance_id}{hint}")
    if as_json:
        click.echo(json.dumps(instance_view.document(topology, instance_id, claim), indent=2))
    else:
        for line in instance_view.lines(topology, instance_id, claim):
            click.echo(line)


def _order(
    kind: OrderKind,
    instance_id: str,
    decide: Callable[[Standing], Decision],
    *,
    wait: bool,
    as_json: bool,
    flags: Flags,
) -> None:
    with failing_in_one_line(f"pdcore instance {kind}"):
        config = _config(instance_id, flags)
        with reading_store(config.store):
            ordered = asyncio.run(_give(config, kind, instance_id, decide, wait=wait))
        if isinstance(ordered.decision, Refuse):
            raise ConfigError(ordered.decision.sentence)
    if as_json:
        click.echo(json.dumps(_document(kind, instance_id, ordered), indent=2))
    else:
        click.echo(f"{ordered.decision.sentence} (revision {ordered.revision})")


async def _give(
    config: CommonConfig,
    kind: OrderKind,
    instance_id: str,
    decide: Callable[[Standing], Decision],
    *,
    wait: bool,
) -> Ordered:
    keyspace = Keyspace(cluster=config.cluster)
    async with open_store(config.store_access) as store:
        ordered = await give_order(store, keyspace, instance_id, decide)
        if wait and not isinstance(ordered.decision, Refuse):
            order = _standing_order(ordered.decision)
            incarnation = None if order is None else order.incarnation
            telemetry.configure(config.log_format, "warning")  # standard output is for the answer
            await _wait(store, keyspace, kind, instance_id, incarnation)
        return ordered


async def _wait(
    store: Store, keyspace: Keyspace, kind: OrderKind, instance_id: str, incarnation: str | None
) -> None:
    def done(seen: Topology) -> bool:
        return is_carried_out(kind, incarnation, seen.instances.get(instance_id))

    async with Follower(store, keyspace) as follower:
        try:
            await follower.wait_until(done, WAIT_S)
        except TimeoutError:
            raise PdcoreError(
                f"{instance_id} was ordered but has not done so within {WAIT_S:.0f} s"
            ) from None


async def _read(config: CommonConfig, instance_id: str) -> tuple[Topology, str | None]:
    keyspace = Keyspace(cluster=config.cluster)
    async with open_store(config.store_access) as store:
        snapshot = await store.list(keyspace.view)
        claim = await store.get(keyspace.claim(instance_id))
    listed = {key.removeprefix(keyspace.view): stored for key, stored in snapshot.entries.items()}
    return build(listed, snapshot.revision), None if claim is None else holder_of(claim)


def _config(instance_id: str, flags: Flags) -> CommonConfig:
    try:
        name(instance_id)
    except ValueError as wrong:
        raise ConfigError(f"ID: {wrong}") from None
    return load(CommonConfig, COMMON, flags, section="instance")


def _standing_order(decision: Decision) -> OrderRecord | None:
    return decision.order if isinstance(decision, Give | Leave) else None


def _document(kind: OrderKind, instance_id: str, ordered: Ordered) -> dict[str, object]:
    decision = ordered.decision
    order = _standing_order(decision)
    return {
        "instance_id": instance_id,
        "asked": kind,
        "changed": isinstance(decision, Give | TakeBack),
        "incarnation": None if order is None else order.incarnation,
        "sticky": order is not None and order.sticky,
        "revision": ordered.revision,
        "said": decision.sentence,
    }
