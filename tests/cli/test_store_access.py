"""A store that cannot be reached the way it was said: one line, exit status 2 and no secret, whoever starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

import pdcore.cli
import pdcore.engine.command
import pdcore.router.command
from tests.support.certificates import Authority
from tests.support.etcd_auth import USER, add_user, switch_on
from tests.support.etcd_server import EtcdServer, ServerTls, etcd_server
from tests.support.processes import free_port
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECRET: Final = "hunter2-is-a-secret"
STARTS: Final[dict[str, tuple[click.Command, tuple[str, ...]]]] = {
    "pdcore topology": (pdcore.cli.main, ("topology",)),
    "pdcore.router": (pdcore.router.command.main, ("--port", "0")),
    "pdcore.engine": (
        pdcore.engine.command.main,
        ("--role", "prefill", "--port", "0", "--bootstrap-port", "0"),
    ),
    "pdcore up": (pdcore.cli.main, ("up", "--prefill", "1", "--decode", "1")),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServer]:
    """An etcd that asks for users."""
    with etcd_server(extra=("--bcrypt-cost", "4")) as server:
        add_user(server, "/pdcore/")
        switch_on(server)
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[EtcdServer]:
    """An etcd that wants to see a certificate."""
    with etcd_server(tls=ServerTls(authority.issue("server"), authority.ca, authority.ca)) as server:
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], model: Path) -> Starting:
    monkeypatch.setenv("PDCORE_MODEL", str(model))
    monkeypatch.setenv("PDCORE_LOG_LEVEL", "error")
    monkeypatch.setenv("PDCORE_STORE_TIMEOUT_S", "30")  # a store that does not answer in time refuses nobody
    return Starting(monkeypatch, capfd)


class Starting:
    """Starts something in this process, and looks at everything it writes, also below Python."""

    def __init__(self, environ: pytest.MonkeyPatch, written: pytest.CaptureFixture[str]) -> None:
        self._environ = environ
        self._written = written

    def refusal(self, what: str, *flags: str, password: str | None = None) -> str:
        """Its only line, without its name."""
        if password is not None:
            self._environ.setenv("PDCORE_STORE_PASSWORD", password)
        command, arguments = STARTS[what]
        ended = CliRunner().invoke(command, (*arguments, *flags))
        below = self._written.readouterr()
        everything = ended.output + below.out + below.err
        assert ended.exit_code == 2, everything
        assert SECRET not in everything
        (line,) = everything.splitlines()
        name, _, said = line.partition(": ")
        assert name == what
        return said


@pytest.mark.parametrize("what", STARTS)
def test_what_cannot_be_meant_is_refused_before_anybody_connects(starting: Starting, what: str) -> None:
    assert starting.refusal(what, "--store", "http://a:1").startswith(
        "--store / PDCORE_STORE: must start with"
    )
    in_url = starting.refusal(what, "--store", f"etcd://root:{SECRET}@a:1")
    assert in_url.endswith("use --store-user and PDCORE_STORE_PASSWORD")
    assert starting.refusal(what, "--store", "etcd://a:1", "--store-ca", "/nowhere").startswith(
        "--store-ca / PDCORE_STORE_CA: cannot read /nowhere"
    )


@pytest.mark.parametrize("what", STARTS)
def test_a_store_that_does_not_let_us_in_ends_what_starts(
    starting: Starting, what: str, guarded: EtcdServer, strict: EtcdServer, authority: Authority
) -> None:
    assert "asks for a user" in starting.refusal(what, "--store", guarded.url)
    assert "does not accept our certificate" in starting.refusal(
        what, "--store", strict.url, "--store-ca", str(authority.ca)
    )
    wrong = starting.refusal(what, "--store", guarded.url, "--store-user", USER, password=SECRET)
    assert "invalid user ID or password" in wrong


def test_the_etcd_of_up_is_not_given_a_login(starting: Starting) -> None:
    said = starting.refusal(
        "pdcore up", "--etcd-port", str(free_port()), "--store-user", USER, password=SECRET
    )
    assert said == "a user, password or certificate for the store is of no use without --store"
