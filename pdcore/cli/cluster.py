"""``pdcore up``, ``demo``, ``demo-model``: a whole cluster on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from pdcore.cli.group.accepted import accepted_spec
from pdcore.cli.kv_interface import kv_interface
from pdcore.cli.pass_key import PassKey
from pdcore.cli.terminal import FAILED, columns, console, failing_in_one_line
from pdcore.cli.topology import read_topology
from pdcore.config import UP, UpConfig, demo_model_directory, load, options
from pdcore.errors import ConfigError
from pdcore.group import demo as question
from pdcore.group.keyspace_text import shortened
from pdcore.group.launch.cluster import LocalCluster
from pdcore.group.launch.group import supervise_group
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.up import supervise
from pdcore.group.overview import table
from pdcore.starting import INTERRUPTED
from pdcore.topology.keys import Keyspace

ETCDCTL_S: Final = 10.0
ASK_ROUTERS_S: Final = 10.0

Flags = dict[str, str | None]


@click.command()
@click.argument("group_file", metavar="[GROUP.yaml]", required=False, type=click.Path(path_type=Path))
@options(UP)
def up(group_file: Path | None, **flags: str | None) -> None:
    """Run a whole cluster on this machine until Ctrl-C: etcd, engines, a router.

    With a group's file: run the group's members that nobody runs yet, on this machine. A group that is new is saved
    first; of one that is there what was saved runs, and pdcore group apply changes that.

    Members that exit are started again. Settings that are not listed here (PDCORE_DTYPE, PDCORE_KV_TOKENS …) reach the
    members through the environment and pdcore.toml.
    """
    with failing_in_one_line("pdcore up"):
        if group_file is not None:
            sys.exit(_up_group(group_file, flags))
        config = _up_config(flags)
        sys.exit(supervise(config, sys.stdout, _say_how_to_ask))


@click.command()
@options(UP)
def demo(**flags: str | None) -> None:
    """Ask a real model one question through prefill and decode, show what etcd held meanwhile, and end."""
    with failing_in_one_line("pdcore demo"):
        config = _up_config(
            {**flags, "log_level": flags["log_level"] or "warning", "port": flags["port"] or "0"}
        )
        sys.exit(supervise(config, sys.stderr, _demonstrate(config), on_signal=INTERRUPTED))


@click.command("demo-model")
def demo_model() -> None:
    """Convert the demo model once (SmolLM2-135M-Instruct), and print its directory."""
    from pdcore.engine.demo_model import ensure_demo_model

    with failing_in_one_line("pdcore demo-model"):
        click.echo(ensure_demo_model())


def _up_group(file: Path, flags: Flags) -> int:
    spec = accepted_spec(file)
    for name in ("prefill", "decode", "unified", "model", "model_name"):
        if flags[name] is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is of no use with a group's file, which says it")
    config = load(UpConfig, UP, flags, section="up", defaults={"model": "."})
    interface = kv_interface(spec, config.kv_transfer_ifname)
    settled = replace(config, kv_transfer_ifname=interface)
    return supervise_group(settled, spec, sys.stdout, partial(PassKey.of(config).client, ASK_ROUTERS_S))


def _up_config(flags: Flags) -> UpConfig:
    config = load(UpConfig, UP, flags, section="up", defaults={"model": str(demo_model_directory())})
    if config.model == demo_model_directory():
        from pdcore.engine.demo_model import ensure_demo_model

        ensure_demo_model()
    return config


async def _say_how_to_ask(cluster: LocalCluster, log: PrefixedLog) -> int:
    (model, *_) = cluster.topology.models()
    log.say(f"router: {cluster.router_url}   store: {cluster.access.url}")
    log.say("ask it:")
    log.say(f"  {question.curl(cluster.router_url, model)}")
    log.say("look at it:")
    log.say(f"  pdcore topology --store {cluster.access.url}")
    await asyncio.Event().wait()
    return 0


def _demonstrate(config: UpConfig) -> Callable[[LocalCluster, PrefixedLog], Awaitable[int]]:
    async def body(cluster: LocalCluster, log: PrefixedLog) -> int:
        (model, *_) = cluster.topology.models()
        click.secho(f"\n> {question.QUESTION}", bold=True)
        answer = question.ask(cluster.router_url, model, question.QUESTION, timeout_s=60)
        text = await _print_as_it_comes(answer)
        click.secho(f"\n> etcdctl get --prefix {Keyspace(cluster=config.cluster).root}", bold=True)
        for line in shortened(_etcdctl_listing(cluster.access.url, config.cluster), columns()):
            click.echo(line)
        click.secho(f"\n> pdcore topology --store {cluster.access.url}", bold=True)
        read = await read_topology(cluster.access, config.cluster)
        console().print(table(read, cluster=config.cluster))
        return 0 if question.EXPECTED in text else FAILED

    return body


async def _print_as_it_comes(pieces: AsyncIterator[str]) -> str:
    text = ""
    async with aclosing(pieces) as open_pieces:  # type: ignore[type-var]
        async for piece in open_pieces:
            click.echo(piece, nl=False)
            sys.stdout.flush()
            text += piece
    click.echo()
    return text


def _etcdctl_listing(store: str, cluster: str) -> str:
    """What `etcdctl get --prefix` prints for the cluster's keys."""
    etcdctl = shutil.which("etcdctl")
    if etcdctl is None:
        raise ConfigError("etcdctl is not installed; install it (Debian: apt-get install etcd-client)")
    endpoints = store.removeprefix("etcd://").rstrip("/")
    listing = subprocess.run(
        [etcdctl, "--endpoints", endpoints, "get", "--prefix", Keyspace(cluster=cluster).root],
        env={**os.environ, "ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        timeout=ETCDCTL_S,
        check=True,
    )
    return listing.stdout
