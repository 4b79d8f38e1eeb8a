"""``python -m pdcore.router``: one router. Exit 0 after a drain, 2 when what it was given cannot work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Final

import click
import uvloop

from pdcore import telemetry
from pdcore.config import ROUTER, RouterConfig, load, options
from pdcore.config.spelling import in_their_spelling, typed
from pdcore.config.words import ListCommand
from pdcore.errors import ConfigError
from pdcore.http_server import listen
from pdcore.router.process import router_id_of, run

MISCONFIGURED: Final = 2


@click.command(cls=ListCommand)
@options(ROUTER)
def main(**flags: str | None) -> None:
    """Route requests to the prefill and decode instances of a cluster. Starts before anything else is there."""
    try:
        be_router(flags)
    except ConfigError as wrong:
        spelled = typed(sys.argv[1:], ROUTER)
        for problem in wrong.problems:
            click.echo(f"pdcore.router: {in_their_spelling(problem, spelled)}", err=True)
        sys.exit(MISCONFIGURED)


def be_router(flags: Mapping[str, str | None]) -> None:
    """Be a router until its drain has ended. Raises ConfigError for what cannot work."""
    config = load(RouterConfig, ROUTER, flags, section="router")
    with listen(config.host, config.port, "port") as listener:
        router_id = router_id_of(config, listener)
        telemetry.configure(config.log_format, config.log_level, role="router", router_id=router_id)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(config, listener))
