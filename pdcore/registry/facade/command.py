"""``python -m pdcore.registry.facade``: registers a prefill engine whose ranks speak the bootstrap protocol over HTTP.

Its ranks call --bootstrap-port on this process, its own leader answers requests at --url.
"""

from __future__ import annotations

import asyncio
import sys

import click
import uvloop

from pdcore.config import FACADE, FacadeConfig, load, options
from pdcore.errors import ConfigError
from pdcore.interruptible import Interruptible
from pdcore.registry.facade import process

REFUSED = 2


@click.command(cls=Interruptible, help=__doc__)
@options(FACADE)
def main(**flags: str | None) -> None:
    """Run until told to end; 2 for what cannot work, 3 when superseded."""
    try:
        config = load(FacadeConfig, FACADE, flags, section="facade")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sys.exit(runner.run(process.run(config)))
    except ConfigError as wrong:
        click.echo(f"pdcore.registry.facade: {wrong}", err=True)
        sys.exit(REFUSED)
