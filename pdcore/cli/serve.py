"""``pdcore serve``: an engine instance's parent, or a router, started with the command line of cann-recipes-infer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from pdcore.cli.machines import Lists, Machine, this_machine
from pdcore.cli.recipe_flags import (
    OF_A_ROUTER,
    Given,
    RecipeCommand,
    as_settings,
    machine_lists,
    recipe_options,
    spellings,
)
from pdcore.cli.terminal import failing_in_one_line
from pdcore.config import ENGINE, ROUTER, EngineConfig, options
from pdcore.config.spelling import Spellings, dashed, in_their_spelling
from pdcore.errors import ConfigError

Flags = dict[str, str | None]


@click.command(cls=RecipeCommand, context_settings={"token_normalize_func": dashed})
@recipe_options
@options(ENGINE)
def serve(**given: str | None) -> None:
    """Start this machine's part of an instance with the command line of cann-recipes-infer's server.py.

    \b
    One machine, eight devices:
      pdcore serve --role prefill --yaml-file-path prefill.yaml --node-index 0 \\
        --devices-per-node 8 --ips 10.0.0.1 --store etcd://10.0.0.9:2379
    Four prefill machines and two decode machines, of sixteen devices each; this is p1:
      pdcore serve --role prefill --yaml-file-path prefill.yaml --node-index 1 \\
        --devices-per-node 16 --ips p0 p1 p2 p3 --prefill-ips p0 p1 p2 p3 --decode-ips d0 d1

    A router of the leaders' addresses, which needs no store:
      pdcore serve --role router --prefill-addrs p0 p2 --decode-addrs d0 d1

    Those flags come first below; each works with dashes and with underscores. The others are those of
    python -m pdcore.engine. From the lists, the sizes and --devices-per-node follow the instance, its leader and this
    machine's place in it. Instances and routers find each other through --store.
    """
    spelled = spellings()
    with failing_in_one_line("pdcore serve"), _told_by(spelled):
        if given["role"] == "router":
            from pdcore.router.command import be_router

            return be_router(router_flags(given))
        _refuse_what_is_not_there(given)
        from pdcore.engine.command import serve as be_parent  # says itself which extra is missing

        flags, defaults = settings_of(given)
    sys.exit(be_parent(flags, defaults=defaults, spelled=spelled))


@contextmanager
def _told_by(spelled: Spellings) -> Iterator[None]:
    """What cannot work is told in the spelling that was used."""
    try:
        yield
    except ConfigError as wrong:
        raise ConfigError(*(in_their_spelling(problem, spelled) for problem in wrong.problems)) from wrong


def _refuse_what_is_not_there(given: Given) -> None:
    for name in ("prefill_addrs", "decode_addrs"):
        if given[name] is not None:
            raise ConfigError(f"--{dashed(name)}: is for --role router")


def router_flags(given: Given) -> Flags:
    """A router's settings in the command line of ``--role router``. ConfigError for what only an instance has."""
    known = {setting.name for setting in ROUTER} | {"config"}
    flags: Flags = {}
    for name, value in given.items():
        if name in known:
            flags[name] = value
        elif name in OF_A_ROUTER:
            flags[OF_A_ROUTER[name]] = value
        elif value is not None and name != "role":
            raise ConfigError(f"--{dashed(name)}: is not for --role router")
    return flags


def settings_of(given: Given) -> tuple[Flags, Flags]:
    """Our settings: those that the command line decides, and those that follow unless somebody says otherwise."""
    from pdcore.engine.settings import load_settings

    flags = as_settings(given)
    config = load_settings(flags)
    lists = machine_lists(given, config.role)
    if not lists.given:
        return _agreeing(flags, _alone(lists)), {}
    if config.devices_per_node is None:
        raise ConfigError("--devices-per-node is missing: with it the lists say where an instance ends")
    machine = this_machine(lists, config.dp * config.cp * config.tp, config.devices_per_node)
    return _agreeing(flags, _decided(machine)), _following(machine, config)


def _alone(lists: Lists) -> Flags:
    """Without any list there is this machine only."""
    if lists.node_index or lists.master_node is not None:
        raise ConfigError(
            "--node-index and --master-node need the machines: --ips, --prefill-ips or --decode-ips"
        )
    return {"advertise_ip": lists.bootstrap_host} if lists.bootstrap_host else {}


def _decided(machine: Machine) -> Flags:
    return {
        "advertise_ip": machine.ip,
        "nnodes": str(machine.nnodes),
        "node_rank": str(machine.node_rank),
    }


def _following(machine: Machine, config: EngineConfig) -> Flags:
    """An id that every machine of the instance makes by itself, and where the others ask for the leader."""
    from pdcore.engine.startup import DEFAULT_PORTS

    port = DEFAULT_PORTS[config.role] if config.port is None else config.port
    if machine.nnodes > 1 and port == 0 and config.instance_id is None:
        raise ConfigError(
            "--port / PDCORE_PORT: 0 on several machines needs an --instance-id, the same on all"
        )
    host = f"[{machine.leader}]" if ":" in machine.leader else machine.leader
    defaults: Flags = {"instance_id": f"{config.role}-{machine.leader}-{port}" if port else None}
    return {**defaults, "leader": f"{host}:{port}"} if machine.node_rank and port else defaults


def _agreeing(flags: Flags, decided: Flags) -> Flags:
    """``flags`` with what was ``decided``, which a flag may repeat."""
    for name, value in decided.items():
        if flags.get(name) not in (None, value):
            raise ConfigError(
                f"--{dashed(name)}: {flags[name]} contradicts {value}, which follows from the lists"
            )
    return {**flags, **decided}
