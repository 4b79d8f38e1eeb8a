"""The command ``pdcore``: what a person types. Every process it starts has a command line of its own.

One module per group of commands, loaded when it is used; ``terminal`` is how all of them print and fail.
"""

from __future__ import annotations

from typing import Final

import click

from pdcore import __version__
from pdcore.cli.lazily import LazyGroup

_COMMANDS: Final = {
    "up": "pdcore.cli.cluster:up",
    "demo": "pdcore.cli.cluster:demo",
    "demo-model": "pdcore.cli.cluster:demo_model",
    "serve": "pdcore.cli.serve:serve",
    "topology": "pdcore.cli.topology:topology",
    "events": "pdcore.cli.events:events",
    "instance": "pdcore.cli.instance:instance",
    "group": "pdcore.cli.group:group",
    "modes": "pdcore.cli.modes:modes",
    "doctor": "pdcore.cli.doctor:doctor",
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="pdcore")
def main() -> None:
    """Serve a language model with prefill and decode in separate processes that find each other through etcd.

    \b
    See it work:      pdcore demo
    Keep it running:  pdcore up            (then ask with the curl line it prints)
    Look at a fleet:  pdcore topology --store etcd://HOST:PORT
    Change one of it: pdcore instance drain ID
    Declare a group:  pdcore group init pdcore > GROUP.yaml; pdcore group check GROUP.yaml

    \b
    One process each, in any order, on any machine that reaches the store:
      python -m pdcore.router
      python -m pdcore.engine --role prefill
      python -m pdcore.engine --role decode
    With the files and flags of cann-recipes-infer: pdcore serve

    Each setting is a flag, an environment variable (PDCORE_…) or a line in pdcore.toml; see --help of each command.
    """
