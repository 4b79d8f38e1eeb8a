"""``pdcore group init`` and ``schema``: what a group's file looks like."""

from __future__ import annotations

import json

import click

from pdcore.config.cache import demo_model_directory
from pdcore.group.examples import example
from pdcore.group.schema import schema as schema_of
from pdcore.group.spec import MODES


@click.command()
@click.argument("mode", type=click.Choice(MODES))
@click.option(
    "--model", metavar="DIR|NAME", help="The model; for mode pdcore the cached demo model unless given."
)
def init(mode: str, model: str | None) -> None:
    """Print a commented example of a group in MODE."""
    chosen = next(name for name in MODES if name == mode)
    if model is None and chosen == "pdcore":
        model = str(demo_model_directory())
    click.echo(example(chosen, model), nl=False)


@click.command()
def schema() -> None:
    """Print the JSON Schema of a group's file, for editors and other programs."""
    click.echo(json.dumps(schema_of(), indent=2))
