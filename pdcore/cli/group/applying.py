"""``pdcore group apply``: save what a group shall be."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from pdcore.cli.group.accepted import accepted_spec
from pdcore.cli.terminal import failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.group.control import applying
from pdcore.group.control.applying import Applied
from pdcore.group.modes.vendors import vendors_of
from pdcore.group.spec import GroupSpec
from pdcore.group.validation.check import accepted
from pdcore.registry.connect import open_store
from pdcore.topology.keys import Keyspace


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@options(COMMON)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def apply(file: Path, as_json: bool, **flags: str | None) -> None:
    """Check a group's file and save it. Nothing restarts.

    A new group gets its first generation, which whoever runs `pdcore up FILE` starts. Otherwise the running generation
    stays as it is, also for members that crash or are added, until `pdcore group restart`. Numbers of replicas that
    changed in the file are scaled to.
    """
    with failing_in_one_line("pdcore group apply"):
        config = load(CommonConfig, COMMON, flags, section="group")
        spec = accepted_spec(file)
        with reading_store(config.store):
            applied = asyncio.run(_apply(config, spec))
    click.echo(json.dumps(_document(spec, applied), indent=2) if as_json else _sentence(spec, applied, file))


async def _apply(config: CommonConfig, spec: GroupSpec) -> Applied:
    async with open_store(config.store_access) as store:
        keyspace = Keyspace(cluster=config.cluster)
        if spec.vendor is None:  # else the user knows of accelerators that nobody runs on yet
            standing = await applying.read(store, keyspace, spec.name)
            accepted(spec, vendors=vendors_of(standing.topology))
        return await applying.apply(store, keyspace, spec)


def _document(spec: GroupSpec, applied: Applied) -> dict[str, object]:
    return {
        "group": spec.name,
        "created": applied.created,
        "changed": applied.changed,
        "stale": applied.stale,
        "running": applied.running,
        "replicas": dict(applied.plan.replicas),
    }


def _sentence(spec: GroupSpec, applied: Applied, file: Path) -> str:
    if applied.created:
        return f"group {spec.name} is saved; its generation 1 starts where pdcore up {file} runs"
    if applied.stale:
        restart = f"pdcore group restart {spec.name}"
        return f"group {spec.name} is saved; generation {applied.running} runs on until {restart}"
    return f"group {spec.name} is saved; generation {applied.running} was started from the same"
