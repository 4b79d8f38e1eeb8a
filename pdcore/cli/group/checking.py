"""``pdcore group check``: every reason against a group, before anything is saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from pdcore.cli.group.verdict import document, table_lines
from pdcore.cli.terminal import MISCONFIGURED, columns, failing_in_one_line
from pdcore.config.yaml_file import Unreadable
from pdcore.group.finding import Finding, SpecRefused, refused, unreadable
from pdcore.group.spec import VENDORS, read_spec
from pdcore.group.validation.check import check as check_spec


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--vendor",
    "vendors",
    multiple=True,
    type=click.Choice(VENDORS),
    help="An accelerator vendor that the cluster has; may be repeated. Not asked unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def check(file: Path, vendors: tuple[str, ...], as_json: bool) -> None:
    """Say everything that is wrong with the group in FILE; exit 2 if anything is.

    Each finding has a stable code, the place in the file, the values, and what to do. Advice refuses nothing.
    """
    with failing_in_one_line("pdcore group check"):
        name, found = _judged(file, vendors)
        if as_json:
            click.echo(json.dumps(document(name, found), indent=2))
        else:
            for line in table_lines(str(file), found, columns()):
                click.echo(line)
        if refused(found):
            sys.exit(MISCONFIGURED)


def _judged(file: Path, vendors: tuple[str, ...]) -> tuple[str | None, tuple[Finding, ...]]:
    """The group's name, None while its form is wrong, and what was found."""
    try:
        spec = read_spec(file)
    except SpecRefused as wrong:
        return None, wrong.findings
    except Unreadable as wrong:
        return None, (unreadable(wrong),)
    return spec.name, check_spec(spec, vendors=vendors or None)
