"""``python -m pdcore.engine --role prefill|decode|unified``: one engine instance, this process being its leader."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

import click
import uvloop

from pdcore.config import ENGINE, EngineConfig, demo_model_directory, load, options
from pdcore.errors import ConfigError

try:
    from pdcore.engine import leader
    from pdcore.engine.rank_process import RANK_COMMAND
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("pdcore"):
        raise
    remedy = "engines need the extra: pip install 'pdcore[engine]'"
    click.echo(f"pdcore.engine: the package {missing.name} is not installed; {remedy}", err=True)
    sys.exit(2)


@click.command(help=__doc__)
@options(ENGINE)
def main(**flags: str | None) -> None:
    """Run until told to end; 2 for what cannot work, 3 when superseded, 70 when a rank died."""
    sys.exit(serve(flags))


def serve(flags: Mapping[str, str | None], rank_command: Sequence[str] = RANK_COMMAND) -> int:
    """Be a leader with these flags; the exit status. What cannot work is one line on standard error."""
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
            return runner.run(leader.run(config, rank_command=rank_command))
    except ConfigError as wrong:
        click.echo(f"pdcore.engine: {wrong}", err=True)
        return leader.REFUSED


if __name__ == "__main__":
    main()
