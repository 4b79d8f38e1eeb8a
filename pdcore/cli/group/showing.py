"""``pdcore group show``: what was written about a group, or with --effective what each role would be started with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import yaml

from pdcore.cli.terminal import failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.errors import ConfigError
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.render.frozen_choices import frozen_choices
from pdcore.group.render.showing import document, lines, shown_roles
from pdcore.group.spec import GroupSpec, read_spec, spec_of
from pdcore.topology.records import Json

FILES: Final = (".yaml", ".yml", ".json")


@click.command()
@click.argument("target", metavar="FILE|GROUP")
@options(COMMON)
@click.option(
    "--effective",
    is_flag=True,
    help="What each role would be started with, and where every value comes from.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def show(target: str, effective: bool, as_json: bool, **flags: str | None) -> None:
    """Show the spec in FILE, or the saved one of GROUP, as it was written.

    With --effective each role's command line, variables, files and ports, every value with its source: user (written on
    the role), inherited (written for the group), mode, or derived. What only a member's place tells stays a placeholder.
    """
    with failing_in_one_line("pdcore group show"):
        spec = _spec(target, flags)
        if effective:
            _show_effective(spec, as_json)
        elif as_json:
            click.echo(json.dumps(spec.document, indent=2))
        else:
            click.echo(yaml.safe_dump(dict(spec.document), sort_keys=False, allow_unicode=True), nl=False)


def _show_effective(spec: GroupSpec, as_json: bool) -> None:
    modes = catalogue()
    roles = shown_roles(modes, spec, frozen_choices(spec, modes.mode(spec.mode)))
    if as_json:
        click.echo(json.dumps(document(modes, spec, roles), indent=2))
        return
    for line in lines(modes, spec, roles):
        click.echo(line)


def _spec(target: str, flags: Mapping[str, str | None]) -> GroupSpec:
    if target.endswith(FILES) or "/" in target or Path(target).is_file():
        return read_spec(Path(target))
    config = load(CommonConfig, COMMON, flags, section="group")
    with reading_store(config.store):
        return spec_of(asyncio.run(_saved(config, target)))


async def _saved(config: CommonConfig, group: str) -> dict[str, Json]:
    from pdcore.cli.topology import read_topology  # only who asks a store pays for its client

    topology = await read_topology(config.store_access, config.cluster)
    found = topology.groups.get(group)
    if found is None or found.spec is None:
        known = ", ".join(sorted(topology.groups)) or "none"
        raise ConfigError(f"there is no file and no saved group {group!r}; saved are {known}")
    return dict(found.spec.document)
