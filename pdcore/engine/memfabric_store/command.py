"""``python -m pdcore.engine.memfabric_store``: the store that memfabric before 1.2 needs, once in a cluster.

It keeps it at --host and --port and says in the keyspace, at ``side/memfabric_store``, where that is: leaders look there
unless --memfabric-store tells them. Have something start it anew when it ends. From memfabric 1.2 on nobody needs it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import click

from pdcore import telemetry
from pdcore.config import load, options
from pdcore.config.memfabric_store import MEMFABRIC_STORE, MemfabricStoreConfig
from pdcore.engine.memfabric_store import serving
from pdcore.errors import ConfigError
from pdcore.interruptible import Interruptible

REFUSED: Final = 2


@click.command(cls=Interruptible, help=__doc__)
@options(MEMFABRIC_STORE)
def main(**flags: str | None) -> None:
    """Run until told to end; 2 for what cannot work."""
    try:
        config = load(MemfabricStoreConfig, MEMFABRIC_STORE, flags, section="memfabric_store")
        telemetry.configure(config.log_format, config.log_level)
        asyncio.run(serving.run(config))
    except ConfigError as wrong:
        click.echo(f"pdcore.engine.memfabric_store: {wrong}", err=True)
        sys.exit(REFUSED)
