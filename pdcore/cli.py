"""The command `pdcore`: what a person types. Every process it starts has a command line of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

import click
from rich.console import Console

from pdcore import __version__
from pdcore.config import COMMON, UP, CommonConfig, UpConfig, demo_model_directory, load, options
from pdcore.errors import ConfigError, PdcoreError, StoreError
from pdcore.group import demo as question
from pdcore.group.keyspace_text import shortened
from pdcore.group.launch.cluster import LocalCluster
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.up import supervise
from pdcore.group.overview import document, table
from pdcore.registry.connect import open_store
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology, build

FAILED: Final = 1
MISCONFIGURED: Final = 2
INTERRUPTED: Final = 130
PIPE_COLUMNS: Final = 160
ETCDCTL_S: Final = 10.0

Flags = dict[str, str | None]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pdcore")
def main() -> None:
    """Serve a language model with prefill and decode in separate processes that find each other through etcd.

    \b
    See it work:      pdcore demo
    Keep it running:  pdcore up            (then ask with the curl line it prints)
    Look at a fleet:  pdcore topology --store etcd://HOST:PORT

    \b
    One process each, in any order, on any machine that reaches the store:
      python -m pdcore.router
      python -m pdcore.engine --role prefill
      python -m pdcore.engine --role decode

    Each setting is a flag, an environment variable (PDCORE_…) or a line in pdcore.toml; see --help of each command.
    """


@main.command()
@options(UP)
def up(**flags: str | None) -> None:
    """Run a whole cluster on this machine until Ctrl-C: etcd, engines, a router.

    Members that exit are started again. Settings that are not listed here (PDCORE_DTYPE, PDCORE_KV_TOKENS …) reach the
    members through the environment and pdcore.toml.
    """
    with _failing_in_one_line("pdcore up"):
        config = _up_config(flags)
        sys.exit(supervise(config, sys.stdout, _say_how_to_ask))


@main.command()
@options(UP)
def demo(**flags: str | None) -> None:
    """Ask a real model one question through prefill and decode, show what etcd held meanwhile, and end."""
    with _failing_in_one_line("pdcore demo"):
        config = _up_config(
            {**flags, "log_level": flags["log_level"] or "warning", "port": flags["port"] or "0"}
        )
        sys.exit(supervise(config, sys.stderr, _demonstrate(config), on_signal=INTERRUPTED))


@main.command()
@options(COMMON)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def topology(as_json: bool, **flags: str | None) -> None:
    """Show which instances and routers are registered, and why one is not ready."""
    with _failing_in_one_line("pdcore topology"):
        config = load(CommonConfig, COMMON, flags, section="topology")
        try:
            read = asyncio.run(_read_topology(config.store, config.cluster, config.store_timeout_s))
        except StoreError as error:
            raise StoreError(
                f"cannot read the store at {config.store}: {error}. "
                "Is it running? --store / PDCORE_STORE names another one."
            ) from error
    if as_json:
        click.echo(json.dumps(document(read, store=config.store, cluster=config.cluster), indent=2))
    else:
        _console().print(table(read, cluster=config.cluster))


@main.command("demo-model")
def demo_model() -> None:
    """Convert the demo model once (SmolLM2-135M-Instruct), and print its directory."""
    from pdcore.engine.demo_model import ensure_demo_model

    with _failing_in_one_line("pdcore demo-model"):
        click.echo(ensure_demo_model())


def _up_config(flags: Flags) -> UpConfig:
    config = load(UpConfig, UP, flags, section="up", defaults={"model": str(demo_model_directory())})
    if config.model == demo_model_directory():
        from pdcore.engine.demo_model import ensure_demo_model

        ensure_demo_model()
    return config


async def _say_how_to_ask(cluster: LocalCluster, log: PrefixedLog) -> int:
    (model, *_) = cluster.topology.models()
    log.say(f"router: {cluster.router_url}   store: {cluster.store}")
    log.say("ask it:")
    log.say(f"  {question.curl(cluster.router_url, model)}")
    log.say("look at it:")
    log.say(f"  pdcore topology --store {cluster.store}")
    await asyncio.Event().wait()
    return 0


def _demonstrate(config: UpConfig) -> Callable[[LocalCluster, PrefixedLog], Awaitable[int]]:
    async def body(cluster: LocalCluster, log: PrefixedLog) -> int:
        (model, *_) = cluster.topology.models()
        click.secho(f"\n> {question.QUESTION}", bold=True)
        answer = question.ask(cluster.router_url, model, question.QUESTION, timeout_s=60)
        text = await _print_as_it_comes(answer)
        click.secho(f"\n> etcdctl get --prefix {Keyspace(cluster=config.cluster).root}", bold=True)
        for line in shortened(_etcdctl_listing(cluster.store, config.cluster), _columns()):
            click.echo(line)
        click.secho(f"\n> pdcore topology --store {cluster.store}", bold=True)
        read = await _read_topology(cluster.store, config.cluster, config.store_timeout_s)
        _console().print(table(read, cluster=config.cluster))
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


async def _read_topology(store: str, cluster: str, timeout_s: float) -> Topology:
    """The cluster's keys, read once."""
    view = Keyspace(cluster=cluster).view
    async with open_store(store, timeout_s=timeout_s) as opened:
        snapshot = await opened.list(view)
    listed = {key.removeprefix(view): stored for key, stored in snapshot.entries.items()}
    return build(listed, snapshot.revision)


def _console() -> Console:
    """Standard output; a pipe is as wide as a table needs."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def _columns() -> int:
    return shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns if sys.stdout.isatty() else PIPE_COLUMNS


@contextmanager
def _failing_in_one_line(command: str) -> Iterator[None]:
    """What pdcore raises on purpose becomes one line per problem: exit 2 for what was given, 1 for what happened."""
    try:
        yield
    except ConfigError as wrong:
        for problem in wrong.problems:
            click.echo(f"{command}: {problem}", err=True)
        sys.exit(MISCONFIGURED)
    except PdcoreError as failed:
        click.echo(f"{command}: {failed}", err=True)
        sys.exit(FAILED)
    except BrokenPipeError:  # nobody reads our output any more
        sys.stdout = open(os.devnull, "w")
        sys.exit(FAILED)
