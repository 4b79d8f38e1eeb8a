"""The etcd that `pdcore up` brings along when no store is named: one member, loopback only."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.errors import ConfigError
from pdcore.group.launch.members import HOST, Member

NAME: Final = "etcd"
QUOTA_BYTES: Final = 2 << 30
COMPACTION: Final = "1h"
MISSING: Final = (
    "etcd is not installed; install it (Debian: apt-get install etcd-server etcd-client), "
    "or name a store that runs: --store / PDCORE_STORE etcd://HOST:PORT"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedEtcd:
    """Where it listens and what it keeps."""

    binary: str
    client_port: int
    peer_port: int
    data_dir: Path

    @property
    def store(self) -> str:
        """The store URL of the cluster's other members."""
        return f"etcd://{HOST}:{self.client_port}"

    def member(self) -> Member:
        """Its process."""
        client, peer = f"http://{HOST}:{self.client_port}", f"http://{HOST}:{self.peer_port}"
        flags = {
            "name": "pdcore",
            "data-dir": str(self.data_dir),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"pdcore={peer}",
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": COMPACTION,
            "quota-backend-bytes": str(QUOTA_BYTES),
            "logger": "zap",
            "log-level": "warn",
        }
        named = (part for flag, value in flags.items() for part in (f"--{flag}", value))
        return Member(name=NAME, argv=(self.binary, *named))


@contextmanager
def prepared(port: int, data_dir: Path | None) -> Iterator[EmbeddedEtcd]:
    """Find the binary, ports (``port`` 0 picks a free one) and a directory; a temporary one is removed afterwards."""
    binary = shutil.which(NAME)
    if binary is None:
        raise ConfigError(MISSING)
    client_port, peer_port = _free_ports(port)
    with _directory(data_dir) as directory:
        yield EmbeddedEtcd(binary=binary, client_port=client_port, peer_port=peer_port, data_dir=directory)


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="pdcore-etcd-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    try:
        given.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as wrong:
        raise ConfigError(f"--data-dir / PDCORE_DATA_DIR: cannot use {given}: {wrong.strerror}") from wrong
    yield given


def _free_ports(client_port: int) -> tuple[int, int]:
    """Both sockets are held until both ports are known, so that they differ."""
    with socket.socket() as client, socket.socket() as peer:
        # etcd binds with SO_REUSEADDR too: connections of an earlier run that linger do not count as taken.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            client.bind((HOST, client_port))
        except OSError as wrong:
            raise ConfigError(
                f"--etcd-port / PDCORE_ETCD_PORT: {HOST}:{client_port}: {wrong.strerror}"
            ) from wrong
        peer.bind((HOST, 0))
        return client.getsockname()[1], peer.getsockname()[1]
