"""A Redis store that does not let us in: one line, exit status 2 and no secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import pytest
from click.testing import CliRunner

import pdcore.cli
import pdcore.router.command
from tests.support.certificates import Authority
from tests.support.redis_server import RedisServer, RedisTls, redis_server

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECRET: Final = "hunter2-is-a-secret"
STARTS: Final[dict[str, tuple[click.Command, tuple[str, ...]]]] = {
    "pdcore topology": (pdcore.cli.main, ("topology",)),
    "pdcore.router": (pdcore.router.command.main, ("--port", "0")),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A Redis that asks for a password."""
    with redis_server(password="open sesame") as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[RedisServer]:
    """A Redis that wants to see a certificate."""
    tls = RedisTls(authority.issue("server"), authority.ca, mutual=True)
    with redis_server(tls=tls) as server:
        yield server


def _refusal(what: str, *flags: str) -> str:
    command, arguments = STARTS[what]
    ended = CliRunner().invoke(command, (*arguments, *flags))
    assert ended.exit_code == 2, ended.output
    assert SECRET not in ended.output
    assert len(ended.output.splitlines()) == 1, ended.output
    name, _, said = ended.output.strip().partition(": ")
    assert name == what
    return said


@pytest.mark.parametrize("what", STARTS)
def test_a_store_that_does_not_let_us_in_ends_what_starts(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    guarded: RedisServer,
    strict: RedisServer,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("PDCORE_LOG_LEVEL", "error")
    assert "asks for a password" in _refusal(what, "--store", guarded.url)
    assert "use --store-user" in _refusal(what, "--store", f"redis://me:{SECRET}@127.0.0.1")
    trusted = ("--store", strict.url, "--store-ca", str(authority.ca))
    assert "CERTIFICATE_REQUIRED" in _refusal(what, *trusted)
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    assert "CERTIFICATE_VERIFY_FAILED" in _refusal(
        what, "--store", strict.url, "--store-ca", str(stranger.ca)
    )
    monkeypatch.setenv("PDCORE_STORE_PASSWORD", SECRET)
    assert "invalid" in _refusal(what, "--store", guarded.url)
