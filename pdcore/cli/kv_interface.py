"""Which interface of this machine carries a group's KV, for members that are started here."""

from __future__ import annotations

import click

from pdcore.errors import ConfigError
from pdcore.group.launch.members import HOST
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.placeholders import names_in
from pdcore.group.network.kv_interface import choose
from pdcore.group.spec import GroupSpec

NAME = "net_device"


def kv_interface(spec: GroupSpec, named: str | None) -> str | None:
    """``named``, else the group's, else the only one that can be meant; None where no word of the spec asks for one.

    Raises ConfigError with the list when in doubt.
    """
    if NAME not in names_in(dict(spec.document)):
        return named
    from pdcore.engine.interfaces import read_interfaces  # its library comes with the engine

    choice = choose(
        read_interfaces(),
        catalogue().mode(spec.mode).nic_plane,
        named=named or spec.network.kv_transfer_ifname,
        management_ip=HOST,
    )
    if choice.name is None:
        raise ConfigError(f"{{{{{NAME}}}}}: {choice.problem}")
    if choice.warning:
        click.echo(f"pdcore up: {choice.warning}", err=True)
    return choice.name
