"""A Docker engine for the container tests: the one that answers, else one of our own for the time of the run.

Our own keeps data, runtime files, socket and pid file in a temporary directory, publishes on loopback only, leaves
packet filter and forwarding alone, and is ended by its pid. What it creates outside that directory is removed again.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
from docker.errors import DockerException

from pdcore.group.launch import tether
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess

PING_S: Final = 5
PULL_S: Final = 120
START_S: Final = 30.0
BRIDGE: Final = Path("/sys/class/net/docker0")
LEFT_OUTSIDE: Final = (Path("/run/docker"), Path("/etc/docker/key.json"))
_SYSTEM_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class NoEngine(Exception):
    """No engine answers and none can be started; the message says why."""


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """An engine that answers at ``host`` (a value for ``DOCKER_HOST``). Ours cannot pull: it serves one test run."""

    host: str
    ours: bool

    def image(self, public: str, name: str, programs: Sequence[str]) -> str:
        """An image with ``programs`` on its path: ``public`` where it can be pulled, else made from this machine's."""
        with closing(docker.DockerClient(base_url=self.host, timeout=PULL_S)) as client:
            if not self.ours:
                with suppress(DockerException):
                    client.images.pull(public)
                    return public
            with tempfile.TemporaryDirectory(prefix="pdcore-image-") as directory:
                archive = Path(directory) / "image.tar"
                _archive_programs(archive, programs)
                repository, _, tag = name.partition(":")
                client.api.import_image_from_file(
                    str(archive), repository=repository, tag=tag, changes=["ENV PATH=/usr/bin"]
                )
        return name


def _archive_programs(archive: Path, programs: Sequence[str]) -> None:
    """Write a root file system that holds ``programs`` and the shared libraries they load."""
    files = [file for program in programs for file in _with_libraries(program)]
    with tarfile.open(archive, "w", dereference=True) as tar:
        for file in dict.fromkeys(files):
            tar.add(file)
        directory = tarfile.TarInfo("tmp")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(directory)


def _with_libraries(program: str) -> Iterator[str]:
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed"
    yield found
    # A static program has no libraries, which ldd says with an exit status.
    listing = subprocess.run(["ldd", found], capture_output=True, text=True, timeout=10, check=False)
    yield from (word for word in listing.stdout.split() if word.startswith("/"))


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """The engine that ``DOCKER_HOST`` or the usual socket names, else our own. Raises NoEngine."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _answers(host):
        yield DockerEngine(host, ours=False)
        return
    dockerd = shutil.which("dockerd", path=_SYSTEM_PATH)
    if dockerd is None:
        raise NoEngine(
            "no Docker engine answers, and dockerd is not installed (Debian: apt-get install docker.io)"
        )
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine answers, and starting dockerd needs root")
    with _own_engine(dockerd) as host:
        yield DockerEngine(host, ours=True)


@contextmanager
def _own_engine(dockerd: str) -> Iterator[str]:
    with ExitStack() as stack:
        stack.enter_context(_tidying_outside())
        directory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="pdcore-docker-", ignore_cleanup_errors=True)
            )
        )
        host = f"unix://{directory}/docker.sock"
        log = directory / "dockerd.log"
        engine = stack.enter_context(
            ChildProcess(_arguments(dockerd, directory, host), log, environ=_environ())
        )
        with suppress(AssertionError):
            eventually_now(lambda: _answers(host) or not engine.running, START_S)
        if not _answers(host):
            last_words = "\n".join(engine.output().splitlines()[-15:])
            raise NoEngine(f"dockerd does not start:\n{last_words}")
        yield host


def _arguments(dockerd: str, directory: Path, host: str) -> list[str]:
    (directory / "daemon.json").write_text("{}", encoding="utf-8")
    return [
        # Killing the test run ends the engine too.
        *(sys.executable, "-IS", str(Path(tether.__file__)), str(os.getpid()), dockerd),
        *(
            "--config-file",
            str(directory / "daemon.json"),
            "--host",
            host,
            "--pidfile",
            str(directory / "pid"),
        ),
        *("--data-root", str(directory / "data"), "--exec-root", str(directory / "exec")),
        *("--ip", "127.0.0.1", "--iptables=false", "--ip-masq=false", "--ip-forward=false"),
        *("--log-level", "warn"),
    ]


def _environ() -> dict[str, str]:
    return {"PATH": _SYSTEM_PATH}


@contextmanager
def _tidying_outside() -> Iterator[None]:
    """Remove afterwards what an engine makes at fixed places, if it was not there before."""
    had_bridge, had = BRIDGE.exists(), {path for path in LEFT_OUTSIDE if path.exists()}
    try:
        yield
    finally:
        if BRIDGE.exists() and not had_bridge:
            subprocess.run(["ip", "link", "delete", BRIDGE.name], env=_environ(), timeout=10, check=False)
        for path in set(LEFT_OUTSIDE) - had:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _answers(host: str) -> bool:
    """Whether a Docker engine answers at ``host``. One that needs certificates counts as none."""
    connection = _UnixConnection(host.removeprefix("unix://")) if host.startswith("unix://") else _tcp(host)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().read() == b"OK"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=PING_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PING_S)
        self.sock.connect(self._path)


def _tcp(host: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host.partition("://")[2], timeout=PING_S)
