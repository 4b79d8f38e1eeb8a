"""``python -m pdcore.engine --role prefill|decode|unified``: one engine instance, this process being its leader.

With ``--node-rank`` above 0 it is a follower parent: the ranks of another machine of that instance.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

import click
import uvloop

from pdcore import telemetry
from pdcore.config import ENGINE, EngineConfig, options
from pdcore.config.loading import Default
from pdcore.config.spelling import Spellings, in_their_spelling, typed
from pdcore.errors import ConfigError
from pdcore.interruptible import Interruptible

try:
    from pdcore.engine import follower_parent, leader, trial
    from pdcore.engine.ending import REFUSED
    from pdcore.engine.rank_process import RANK_COMMAND
    from pdcore.engine.settings import read_settings
    from pdcore.engine.startup import placement_of
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("pdcore"):
        raise
    remedy = "engines need the extra: pip install 'pdcore[engine]'"
    click.echo(f"pdcore.engine: the package {missing.name} is not installed; {remedy}", err=True)
    sys.exit(2)

log = telemetry.logger(__name__)


@click.command(cls=Interruptible, help=__doc__)
@options(ENGINE)
def main(**flags: str | None) -> None:
    """Run until told to end; 2 for what cannot work, 3 when superseded, 70 when a rank died."""
    sys.exit(serve(flags, spelled=typed(sys.argv[1:], ENGINE)))


def serve(
    flags: Mapping[str, str | None],
    rank_command: Sequence[str] = RANK_COMMAND,
    defaults: Mapping[str, Default] | None = None,
    spelled: Spellings | None = None,
) -> int:
    """Be a leader, or a follower parent, with these flags; the exit status. What cannot work is one line on standard error.

    Nothing is connected before all that can be judged by itself was. ``spelled``: how the flags were typed.
    """
    ignored: list[str] = []
    try:
        config = read_settings(flags, defaults=defaults, ignored=ignored)
        _say_ignored(config, ignored)
        trial.check(config, placement_of(config))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            parent = follower_parent.run if config.node_rank else leader.run
            return runner.run(parent(config, rank_command=rank_command))
    except ConfigError as wrong:
        click.echo(f"pdcore.engine: {in_their_spelling(str(wrong), spelled or {})}", err=True)
        return REFUSED


def _say_ignored(config: EngineConfig, keys: Sequence[str]) -> None:
    """One line, so that nobody believes in a switch that does nothing."""
    if keys:
        telemetry.configure(config.log_format, config.log_level, role=config.role)
        log.info("settings ignored", why="known keys of the file that are not used", keys=",".join(keys))
