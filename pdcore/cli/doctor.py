"""``pdcore doctor``: what is wrong with what a fleet stands on, or will be."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from pdcore.cli.ascend_host import this_host, why_no_device
from pdcore.cli.terminal import FAILED, failing_in_one_line, reading_store
from pdcore.config import COMMON, CommonConfig, environment, load, options
from pdcore.engine.doctor.ascend import examine
from pdcore.registry.doctor.access_verdicts import judge_access
from pdcore.registry.doctor.examine import examine_redis, examine_store
from pdcore.registry.doctor.finding import Finding, is_failed
from pdcore.topology.keys import Keyspace

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.group()
def doctor() -> None:
    """Look for what is wrong, or will be."""


@doctor.command()
@options(COMMON)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def store(as_json: bool, **flags: str | None) -> None:
    """Examine the store: members, versions, alarms, size, compaction, who can reach it, how fast it is.

    Writes a few keys of its own and removes them. The Redis named by --redis is examined too. Exit status 1 when
    something has to be mended before a fleet can rely on it.
    """
    with failing_in_one_line("pdcore doctor store"):
        config = load(CommonConfig, COMMON, flags, section="doctor")
        with reading_store(config.store):
            findings = asyncio.run(_examine(config))
    if as_json:
        document = {"store": config.store, "cluster": config.cluster, "ok": not is_failed(findings)}
        click.echo(json.dumps({**document, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for line in _lines(findings):
            click.echo(line)
    if is_failed(findings):
        sys.exit(FAILED)


@doctor.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def ascend(as_json: bool) -> None:
    """Examine this machine for engines on Ascend devices: driver, CANN, network configuration, ports, packages.

    Changes nothing. Exit status 1 when something is missing; each line says what, and what to do.
    """
    findings = examine(this_host(environment()), why_no_device=why_no_device)
    if as_json:
        document = {"ok": not is_failed(findings), "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(document, indent=2))
    else:
        for line in _lines(findings):
            click.echo(line)
    if is_failed(findings):
        sys.exit(FAILED)


async def _examine(config: CommonConfig) -> tuple[Finding, ...]:
    findings = await examine_store(config.store_access, Keyspace(cluster=config.cluster))
    redis = config.redis_access
    if redis is None:
        return findings
    beside = await examine_redis(redis, "redis", keyspace=False)
    return findings + beside + judge_access(redis)


def _lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        level = click.style(f"{finding.level:4}", fg=_COLOURS[finding.level], bold=finding.level == "fail")
        yield f"{level}  {finding.about:{width}}  {finding.says}"
        if finding.todo is not None:
            yield f"      {'':{width}}  → {finding.todo}"
