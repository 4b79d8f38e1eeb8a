"""``python -m pdcore.engine --role prefill|decode|unified``: one engine instance, this process being its leader."""

from __future__ import annotations

import asyncio
import sys

import click
import uvloop

from pdcore.config import ENGINE, EngineConfig, demo_model_directory, load, options
from pdcore.engine import leader
from pdcore.errors import ConfigError


@click.command(help=__doc__)
@options(ENGINE)
def main(**flags: str | None) -> None:
    """Run until told to end; 2 for what cannot work, 3 when superseded, 70 when a rank died."""
    demo = demo_model_directory()
    try:
        config = load(
            EngineConfig,
            ENGINE,
            flags,
            section="engine",
            defaults={"model": str(demo) if demo.is_dir() else None},
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status = runner.run(leader.run(config))
    except ConfigError as wrong:
        click.echo(f"pdcore.engine: {wrong}", err=True)
        status = leader.REFUSED
    sys.exit(status)


if __name__ == "__main__":
    main()
