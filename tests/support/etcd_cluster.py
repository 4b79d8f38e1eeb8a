"""A real etcd of several members for tests, and what an operator does to one with etcdctl."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.support.etcd_server import START_S, TRIES, EtcdServer
from tests.support.eventually import eventually_now
from tests.support.processes import free_port


def revision_of(server: EtcdServer) -> int:
    """The store's revision."""
    (answer,) = msgspec.json.decode(server.etcdctl("endpoint", "status", "--write-out=json"))
    return int(answer["Status"]["header"]["revision"])


def restore_snapshot(file: Path, server: EtcdServer) -> None:
    """Replace the data of a ``server`` that is down by ``file``'s."""
    server.wipe()
    peer = next(flag for flag in server.child.arguments if flag.startswith("member="))
    server.etcdctl(
        *("snapshot", "restore", str(file), "--data-dir", str(server.data), "--name", "member"),
        *("--initial-cluster", peer, "--initial-advertise-peer-urls", peer.removeprefix("member=")),
    )


def reclaim_space(server: EtcdServer) -> None:
    """What ends a space alarm: compact, defragment, disarm."""
    server.etcdctl("compact", str(revision_of(server)), "--physical")
    server.etcdctl("defrag")
    server.etcdctl("alarm", "disarm")


class EtcdCluster:
    """Members that elect a leader, each an :class:`EtcdServer` to kill, stop and restart with its data."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        self._directory = directory
        self._size = size
        self.members: tuple[EtcdServer, ...] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Run all members, with no data, and return once they serve."""
        for attempt in range(TRIES):
            self.members = self._reserved(self._directory / f"try{attempt}")
            if self._starts():
                return
            self.stop()
        raise AssertionError(f"no cluster of {self._size} etcd members starts")

    def stop(self) -> None:
        """SIGKILL all of them: one that is asked to end waits for others to take over."""
        for member in self.members:
            member.kill()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """``host:port`` of every member's client port."""
        return tuple(member.endpoint for member in self.members)

    def _reserved(self, directory: Path) -> tuple[EtcdServer, ...]:
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(self._size)]
        everybody = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        members = []
        for number, peer in enumerate(peers):
            home = directory / f"m{number}"
            home.mkdir(parents=True)
            # etcd takes the last of a repeated flag.
            own = ("--name", f"m{number}", "--initial-cluster", everybody)
            urls = ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
            member = EtcdServer(home, extra=(*own, *urls))
            member.reserve()
            members.append(member)
        return tuple(members)

    def _starts(self) -> bool:
        """Whether all of them serve: none can alone."""
        for member in self.members:
            member.child.start()
        eventually_now(
            lambda: all(m.healthy() for m in self.members) or not all(m.child.running for m in self.members),
            START_S,
            "every etcd member serving",
        )
        return all(member.child.running for member in self.members)
