"""A real Redis for tests: one server on a free loopback port, its files below a temporary directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from redis import Redis, RedisError

from tests.support.certificates import Certificate
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port

START_S: Final = 20.0
TRIES: Final = 3
DUMP: Final = "dump.rdb"
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")
"""Flags of a server that loses nothing when it is killed."""


def require_redis() -> str:
    """The Redis program to run. Without one the test is skipped, or fails where ``CI=true`` promises one."""
    program = os.environ.get("REDIS_BIN") or shutil.which("redis-server")
    if program:
        return program
    reason = "no redis-server program on PATH or in REDIS_BIN (Debian: apt-get install redis-server)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class RedisTls:
    """``own`` is what the server shows; whoever asks must show one that ``ca`` signed if ``mutual``."""

    own: Certificate
    ca: Path
    mutual: bool = False


class RedisServer:
    """One Redis. Start, end and break it at will: address and files stay until :meth:`wipe`.

    It keeps nothing over a restart by itself: ask for ``DURABLE``, or :meth:`save`. ``password`` is the default
    user's. :attr:`control` reaches it past TLS and every fault of the network.
    """

    def __init__(
        self,
        directory: Path,
        *,
        extra: tuple[str, ...] = (),
        tls: RedisTls | None = None,
        password: str | None = None,
    ) -> None:
        self._program = require_redis()
        self._extra = extra
        self._tls = tls
        self._password = password
        self.data = directory / "data"
        self.log = directory / "redis.log"
        self.port = 0
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
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The value for ``--store`` or ``--redis``."""
        return f"{'redis' if self._tls is None else 'rediss'}://{self.endpoint}"

    @property
    def child(self) -> ChildProcess:
        """The process, for signals."""
        assert self._child is not None, "not started"
        return self._child

    @contextmanager
    def control(self) -> Iterator[Redis]:
        """A client for the test itself."""
        with Redis(unix_socket_path=str(self._socket), password=self._password, socket_timeout=10) as redis:
            yield redis

    def reserve(self) -> None:
        """Choose the port without starting anything, so that a client can be pointed at a server yet to come."""
        self.port = free_port()
        self._child = ChildProcess(self._arguments(), self.log)

    def start(self) -> None:
        """Run it and return once it serves; the first start tries other ports when one was taken meanwhile."""
        self.data.mkdir(exist_ok=True)
        if self._child is not None:
            self._child.start()
            assert self._wait_serving(), self._child.output()[-2000:]
            return
        for _ in range(TRIES):
            self.reserve()
            self.child.start()
            if self._wait_serving():
                return
        raise AssertionError(f"redis does not start:\n{self.child.output()[-2000:]}")

    def stop(self) -> None:
        """SIGTERM and wait; files and address stay."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """SIGKILL and wait; files and address stay."""
        self.child.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self.child.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.child.resume()

    def flush(self) -> None:
        """Delete everything, while it runs."""
        with self.control() as redis:
            redis.flushall()

    def save(self) -> None:
        """Write everything to the file that the next start reads."""
        with self.control() as redis:
            redis.save()

    def wipe(self) -> None:
        """Forget all files. Only while it is down."""
        assert not self.child.running, "stop it first"
        shutil.rmtree(self.data)

    def healthy(self) -> bool:
        """Whether it answers now, everything loaded."""
        try:
            with self.control() as redis:
                return bool(redis.ping())
        except (RedisError, OSError):
            return False

    @property
    def _socket(self) -> Path:
        return self.data / "control.sock"

    def _arguments(self) -> list[str]:
        return [
            *(self._program, "--bind", "127.0.0.1", "--dir", str(self.data), "--save", ""),
            *("--unixsocket", str(self._socket), "--unixsocketperm", "600", "--dbfilename", DUMP),
            *(self._tls_flags() if self._tls else ("--port", str(self.port))),
            *(() if self._password is None else ("--requirepass", self._password)),
            *self._extra,
        ]

    def _tls_flags(self) -> tuple[str, ...]:
        assert self._tls is not None
        return (
            *("--port", "0", "--tls-port", str(self.port), "--tls-ca-cert-file", str(self._tls.ca)),
            *("--tls-cert-file", str(self._tls.own.cert), "--tls-key-file", str(self._tls.own.key)),
            *("--tls-auth-clients", "yes" if self._tls.mutual else "no"),
        )

    def _wait_serving(self) -> bool:
        eventually_now(lambda: self.healthy() or not self.child.running, START_S, "redis serving")
        return self.child.running


@contextmanager
def redis_server(
    *,
    extra: tuple[str, ...] = (),
    tls: RedisTls | None = None,
    password: str | None = None,
    started: bool = True,
) -> Iterator[RedisServer]:
    """A server with a directory of its own; ended and removed at the end of the block.

    Unless ``started`` it only has an address, and the test starts it.
    """
    with tempfile.TemporaryDirectory(prefix="pdcore-redis-") as directory:
        server = RedisServer(Path(directory), extra=extra, tls=tls, password=password)
        try:
            if started:
                server.start()
            else:
                server.reserve()
            yield server
        finally:
            server.stop()
