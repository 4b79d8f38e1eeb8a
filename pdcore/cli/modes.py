"""``pdcore modes``: the recipes of this release, one in full, and which one an engine gets."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table

from pdcore.cli.terminal import FAILED, columns, console, failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, load, options
from pdcore.config.spelling import closest
from pdcore.errors import ConfigError, StoreError
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.mode import Mode
from pdcore.group.modes.resolve import Resolution, resolve
from pdcore.group.modes.shared_cache import shared_caches
from pdcore.group.spec import BACKENDS, MODES, VENDORS

_COLUMNS: Final = (
    *("mode", "engine", "accelerators", "versions", "legs"),
    *("tensor parallel", "members", "KV lease", "counted at"),
)
_NARROW: Final = 130
"""Below so many columns the table's cells would be torn to pieces."""
_LEGS: Final = {"two_hop": "one by one", "same_dispatch": "at once", "user_provided": "yours"}
_LEGEND: Final = (
    ("*", "preferred where several modes fit"),
    ("legs", "one by one (two_hop): prefill, then decode with its answer"),
    ("", "at once (same_dispatch): both together, joined by a room"),
    ("", "yours (user_provided): as the spec's router has it"),
    ("members", "keyspace: routers follow whoever registers"),
    ("", "dynamic: a running router is told who comes and goes"),
    ("KV lease", "how long prefill keeps KV that decode never fetches"),
    ("counted at", "the role whose metrics count the transfers of KV"),
)


@click.group()
def modes() -> None:
    """Show the modes: engine, KV transport and router that belong together."""


def _legend() -> Iterator[str]:
    yield from (f"{name:<10}  {means}" for name, means in _LEGEND)


@modes.command("list", epilog="\b\n" + "\n".join(_legend()))
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def list_modes(as_json: bool) -> None:
    """List every mode."""
    with failing_in_one_line("pdcore modes list"):
        shown = catalogue().modes
        if as_json:
            click.echo(json.dumps([_document(mode) for mode in shown], indent=2))
        else:
            if columns() < _NARROW:
                for line in _narrow(shown):
                    click.echo(line)
            else:
                console().print(_table(shown))
            for line in _legend():
                click.echo(line)


@modes.command()
@click.argument("name", metavar="MODE")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def show(name: str, as_json: bool) -> None:
    """Show what a mode adds to prefill, decode and router."""
    with failing_in_one_line("pdcore modes show"):
        if name not in MODES:
            raise ConfigError(
                f"there is no mode {name!r}{closest(name, MODES)}; there are {', '.join(MODES)}"
            )
        mode = catalogue().mode(name)
        if as_json:
            click.echo(json.dumps(_document(mode), indent=2))
        else:
            for line in _lines(mode):
                click.echo(line)


@modes.command("resolve")
@options(COMMON)
@click.option("--engine", required=True, metavar="NAME", help=f"The engine: {', '.join(BACKENDS)}.")
@click.option(
    "--vendors",
    metavar="VENDOR,...",
    help="Accelerators of the fleet; those of its ready engines unless given.",
)
@click.option("--vendor", metavar="VENDOR", help="The one among them that you mean.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def resolve_mode(
    engine: str, vendors: str | None, vendor: str | None, as_json: bool, **flags: str | None
) -> None:
    """Say which mode an engine gets on a fleet's accelerators, or why none; exit status 1 without one."""
    with failing_in_one_line("pdcore modes resolve"):
        _check_vendors((vendor,) if vendor else ())
        there = _named(vendors) if vendors is not None else _reported(flags)
        found = resolve(catalogue(), engine.lower(), there, vendor)
    if as_json:
        click.echo(json.dumps({**found.document(), "vendors": sorted(there)}, indent=2))
    else:
        click.echo(found.message if found.code is None else f"{found.code}: {found.message}")
        console().print(_options(found))
    if found.mode is None:
        sys.exit(FAILED)


def _named(vendors: str) -> frozenset[str]:
    there = frozenset(one.strip() for one in vendors.split(",") if one.strip())
    _check_vendors(there)
    return there


def _check_vendors(names: Any) -> None:
    unknown = [f"there is no vendor {one!r}{closest(one, VENDORS)}" for one in names if one not in VENDORS]
    if unknown:
        raise ConfigError(*unknown)


def _reported(flags: dict[str, str | None]) -> frozenset[str]:
    """What the ready engines in the keyspace run on."""
    from pdcore.cli.topology import read_topology  # only who asks a store pays for its client
    from pdcore.group.modes.vendors import vendors_of

    config = load(CommonConfig, COMMON, flags, section="modes")
    try:
        with reading_store(config.store):
            return frozenset(vendors_of(asyncio.run(read_topology(config.store_access, config.cluster))))
    except StoreError as error:
        raise StoreError(f"{error} Without one, --vendors says what the fleet has.") from error


def _document(mode: Mode) -> dict[str, Any]:
    """The mode with what it refers to."""
    modes_of_release = catalogue()
    caches = shared_caches().get(mode.name)
    return {
        **msgspec.to_builtins(mode),
        "commands": {
            one: list(modes_of_release.backends[one].command) for one in mode.backends if one != "custom"
        },
        "lease": msgspec.to_builtins(modes_of_release.lease_of(mode)),
        "transfer_metrics": msgspec.to_builtins(modes_of_release.metrics_of(mode)),
        "router": msgspec.to_builtins(modes_of_release.router_of(mode)),
        "caches": None if caches is None else msgspec.to_builtins(caches),
    }


def _table(shown: tuple[Mode, ...]) -> Table:
    made = Table(box=box.SIMPLE)
    for column in _COLUMNS:
        made.add_column(column, no_wrap=column == "mode", overflow="fold")
    for mode in shown:
        made.add_row(*_row(mode))
    return made


def _narrow(shown: tuple[Mode, ...]) -> Iterator[str]:
    """The same where a table does not fit: a paragraph for each mode."""
    for mode in shown:
        name, *others = _row(mode)
        said = "; ".join(
            f"{column} {text}" for column, text in zip(_COLUMNS[1:], others, strict=True) if text
        )
        yield name
        yield from textwrap.wrap(said, max(40, columns()), initial_indent="  ", subsequent_indent="  ")
        yield ""


def _row(mode: Mode) -> tuple[str, ...]:
    """What :data:`_COLUMNS` are for ``mode``."""
    metrics = catalogue().metrics_of(mode)
    return (
        f"{mode.name} *" if mode.preferred else mode.name,
        ", ".join(mode.backends),
        ", ".join(mode.vendors) or "any",
        mode.engine_versions or "",
        _LEGS[mode.protocol],
        _tensor_parallel(mode),
        mode.membership,
        _lease(mode),
        "" if metrics is None else metrics.counted_role,
    )


def _tensor_parallel(mode: Mode) -> str:
    rules = (f"{one.direction} ({one.versions})" if one.versions else one.direction for one in mode.tp_rules)
    return "; else ".join(rules).replace("_", " ")


def _lease(mode: Mode) -> str:
    lease = catalogue().lease_of(mode)
    if lease is None or lease.parameter is None:
        return ""
    if lease.platform_default_s is None:
        return f"{lease.engine_default_s} s (the engine's)"
    return f"{lease.platform_default_s} s"


def _lines(mode: Mode) -> Iterator[str]:
    yield f"{mode.name}: {mode.title}"
    yield f"  engine        {', '.join(mode.backends)} {mode.engine_versions or ''}".rstrip()
    yield f"  accelerators  {', '.join(mode.vendors) or 'any'}"
    yield f"  legs          {_LEGS[mode.protocol]} ({mode.protocol})"
    yield f"  tp            {_tensor_parallel(mode)}"
    yield f"  KV lease      {_lease(mode) or 'none'}"
    for role in mode.roles:
        yield f"  {role}"
        yield from (f"    {line}" for line in _role_lines(mode, role == "prefill"))
    router = catalogue().router_of(mode)
    if router is not None:
        words = [*router.entrypoint, *router.connection_args, *router.args]
        yield "  router"
        yield f"    {' '.join(words)}"
        yield f"    yours to set: {', '.join(one.flag for one in router.tunable_args)}"
    for note in mode.capabilities.notes:
        yield f"  note          {note}"


def _role_lines(mode: Mode, is_prefill: bool) -> Iterator[str]:
    recipe = mode.roles["prefill" if is_prefill else "decode"]
    for name, value in recipe.env.items():
        yield f"{name}={value}"
    if recipe.args:
        yield " ".join(recipe.args)
    if recipe.descriptor is not None:
        yield f"--kv-transfer-config {json.dumps(recipe.descriptor, separators=(',', ':'))}"
    for band in recipe.bands:
        yield f"ports: {band.name}, {band.width.replace('_', ' ')}"
    for file in recipe.files:
        yield f"file: {file.path} ({file.why})"


def _options(found: Resolution) -> Table:
    made = Table("mode", "", "what it is", box=box.SIMPLE)
    for one in found.options:
        mark = "->" if one.mode == found.mode else "" if one.code is None else one.code
        made.add_row(one.mode, mark, escape(one.message or one.title))
    return made
