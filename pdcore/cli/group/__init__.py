"""``pdcore group``: declare a group, be told why it would be wrong, run it, change it."""

from __future__ import annotations

from typing import Final

import click

from pdcore.cli.lazily import LazyGroup

_COMMANDS: Final = {
    "init": "pdcore.cli.group.writing:init",
    "schema": "pdcore.cli.group.writing:schema",
    "check": "pdcore.cli.group.checking:check",
    "show": "pdcore.cli.group.showing:show",
    "apply": "pdcore.cli.group.applying:apply",
    "status": "pdcore.cli.group.status:status",
    "scale": "pdcore.cli.group.changing:scale",
    "restart": "pdcore.cli.group.changing:restart",
    "delete": "pdcore.cli.group.deleting:delete",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def group() -> None:
    """Declare a model's deployment as prefill, decode and routers; check it, run it, change it.

    \b
    Begin with one:  pdcore group init pdcore > GROUP.yaml
    Is it right?     pdcore group check GROUP.yaml
    """
