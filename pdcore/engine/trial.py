"""Whether this machine's ranks could compute on the device and load the library that somebody asked for.

It is tried before the instance connects to anything, in a process of its own: the parent of ranks holds neither torch nor
a device, and what breaks in a driver ends the trial alone. What ``auto`` stands for is not tried, since it always works.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import click

from pdcore.config import EngineConfig
from pdcore.engine.ending import REFUSED
from pdcore.engine.placement import Placement
from pdcore.engine.rank_process import PLUG_INS_WAIT
from pdcore.errors import ConfigError

WITHIN_S: Final = 120.0
_ALWAYS_THERE: Final = ("auto", "cpu")
_LIBRARIES: Final = ("mooncake", "memfabric")


def check(config: EngineConfig, placement: Placement) -> None:
    """ConfigError, in the words of a rank, when what ``config`` names cannot be used here."""
    devices = [placement.device_of(rank) for rank in placement.on_node(config.node_rank)]
    flags = []
    if config.device not in _ALWAYS_THERE:
        flags += ["--device", config.device, "--index", str(max(devices))]
    if config.transfer_engine in _LIBRARIES:
        flags += ["--library", config.transfer_engine, "--protocol", config.mooncake_protocol]
    if flags:
        _try(flags)


def _try(flags: list[str]) -> None:
    shown = " ".join(flags)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pdcore.engine.trial", *flags],
            env={**os.environ, **PLUG_INS_WAIT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{shown}: trying it was not over within {WITHIN_S:g} s") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(last if ended.returncode == REFUSED else f"{shown}: trying it failed: {last}")


@click.command(help=__doc__)
@click.option("--device")
@click.option("--index", type=int, default=0)
@click.option("--library", type=click.Choice(_LIBRARIES))
@click.option("--protocol", default="tcp")
def main(device: str | None, index: int, library: str | None, protocol: str) -> None:
    """Exit 2 and one line when it cannot be used."""
    from pdcore.engine import device as devices  # torch, which only a trial needs
    from pdcore.engine.transfer import memfabric_library, mooncake_library

    try:
        if device is not None:
            devices.select(device, index)
        if library == "memfabric":
            memfabric_library.load()
        elif library == "mooncake":
            mooncake_library.load(protocol, mooncake_library.SHORTEST_TIMEOUT_S)
    except ConfigError as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
