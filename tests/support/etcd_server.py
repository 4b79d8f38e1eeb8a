"""A real etcd for tests: one member on free loopback ports, its data below a temporary directory."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.support.certificates import Certificate
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port

START_S: Final = 20.0
TRIES: Final = 3


def require_etcd() -> str:
    """The etcd program to run. Without one the test is skipped, or fails where ``CI=true`` promises one."""
    program = os.environ.get("ETCD_BIN") or shutil.which("etcd")
    if program:
        return program
    reason = "no etcd program on PATH or in ETCD_BIN (Debian: apt-get install etcd-server)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """``own`` is what the server shows; whoever asks must show one that ``client_ca`` signed, if that is given."""

    own: Certificate
    ca: Path
    client_ca: Path | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """For etcd's command line."""
        own = ("--cert-file", str(self.own.cert), "--key-file", str(self.own.key))
        if self.client_ca is None:
            return own
        return (*own, "--client-cert-auth", "--trusted-ca-file", str(self.client_ca))


class EtcdServer:
    """One etcd member. Start, end and break it at will: address and data stay until :meth:`wipe`.

    The short election timeout makes it serve within a second and lets leases be as short as 1 s.
    """

    def __init__(
        self,
        directory: Path,
        program: str | None = None,
        *,
        extra: tuple[str, ...] = (),
        tls: ServerTls | None = None,
    ) -> None:
        self._program = program or require_etcd()
        self._extra = extra
        self._tls = tls
        self.data = directory / "data"
        self.log = directory / "etcd.log"
        self.port = 0
        self._plain_port = 0
        self._child: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """``host:port`` of the client port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The value for ``--store``."""
        return f"etcd://{self.endpoint}"

    @property
    def _plain_url(self) -> str:
        """Where ``/health`` answers without TLS."""
        return f"http://127.0.0.1:{self._plain_port}"

    @property
    def child(self) -> ChildProcess:
        """The process, for signals."""
        assert self._child is not None, "not started"
        return self._child

    def reserve(self) -> None:
        """Choose the ports without starting anything, so that a client can be pointed at a server yet to come."""
        self.port = free_port()
        self._plain_port = self.port if self._tls is None else free_port()
        self._child = ChildProcess(self._arguments(free_port()), self.log)

    def start(self) -> None:
        """Run it and return once it serves; the first start tries other ports when one was taken meanwhile."""
        if self._child is not None:
            self._child.start()
            assert self._wait_serving(), f"etcd has ended:\n{self._child.output()[-2000:]}"
            return
        for _ in range(TRIES):
            self.reserve()
            self.child.start()
            if self._wait_serving():
                return
        raise AssertionError(f"etcd does not start:\n{self.child.output()[-2000:]}")

    def stop(self) -> None:
        """SIGTERM and wait; data and address stay."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """SIGKILL and wait; data and address stay."""
        self.child.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self.child.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.child.resume()

    def wipe(self) -> None:
        """Forget all data. Only while it is down."""
        assert not self.child.running, "stop it first"
        shutil.rmtree(self.data)

    def etcdctl(self, *arguments: str) -> str:
        """What ``etcdctl`` prints; CalledProcessError when it fails."""
        program = shutil.which("etcdctl")
        assert program is not None, "etcdctl is not installed (Debian: apt-get install etcd-client)"
        done = subprocess.run(
            [program, "--endpoints", self.endpoint, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        )
        return done.stdout

    def fill(self) -> None:
        """Put until the quota is used up."""
        for number in range(1_000):
            try:
                self.etcdctl("put", f"/filling/{number}", "x" * 8_000)
            except subprocess.CalledProcessError:
                return
        raise AssertionError("no quota stops anybody")

    def healthy(self) -> bool:
        """Whether it serves linearizable reads now."""
        connection = http.client.HTTPConnection("127.0.0.1", self._plain_port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def calls(self, method: str) -> int:
        """How many calls of a remote procedure (``Range``, ``Authenticate`` …) it was sent so far."""
        return int(self.metric(f'grpc_server_started_total{{grpc_method="{method}"'))

    def metric(self, beginning: str) -> float:
        """The sum of its metrics whose lines begin so."""
        connection = http.client.HTTPConnection("127.0.0.1", self._plain_port, timeout=2)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))

    def _arguments(self, peer_port: int) -> list[str]:
        scheme = "http" if self._tls is None else "https"
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer_port}"
        return [
            *(self._program, "--name", "member", "--data-dir", str(self.data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"member={peer}", "--initial-cluster-state", "new"),
            *("--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap"),
            *(() if self._tls is None else (*self._tls.flags, "--listen-metrics-urls", self._plain_url)),
            *self._extra,
        ]

    def _wait_serving(self) -> bool:
        eventually_now(lambda: self.healthy() or not self.child.running, START_S, "etcd serving")
        return self.child.running


@contextmanager
def etcd_server(
    *, extra: tuple[str, ...] = (), tls: ServerTls | None = None, started: bool = True
) -> Iterator[EtcdServer]:
    """A server with a directory of its own; ended and removed at the end of the block.

    Unless ``started`` it only has an address, and the test starts it.
    """
    with tempfile.TemporaryDirectory(prefix="pdcore-etcd-") as directory:
        server = EtcdServer(Path(directory), extra=extra, tls=tls)
        try:
            if started:
                server.start()
            else:
                server.reserve()
            yield server
        finally:
            server.stop()
