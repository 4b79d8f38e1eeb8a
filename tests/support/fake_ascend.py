"""Stand-ins for the two libraries that move bytes between Ascend devices, with their measured signatures and codes.

They copy between processes of this machine, one-sidedly: whoever is stopped is written into all the same. Sessions are
files in a directory that all processes know. What a real library would say without a driver: ``Machine.driver`` False.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import socket
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdcore.engine.transfer.memfabric_library import Package

_libc: Final = ctypes.CDLL(None, use_errno=True)
_calls: Final = itertools.count(os.getpid())
_MOST_ROWS: Final = 512
_PR_SET_PTRACER: Final = 0x59616D61
_PR_SET_PTRACER_ANY: Final = -1


class _Row(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(slots=True)
class Machine:
    """What a library finds here: a driver or none, and ``directory``, in which processes find each other."""

    directory: Path
    driver: bool = True
    memory: dict[int, int] = field(default_factory=dict)
    session: str | None = None

    def begin(self, session: str) -> None:
        """From now on peers reach this process as ``session``."""
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
        self.session = session
        self._tell()

    def end(self) -> None:
        if self.session is not None:
            self._file(self.session).unlink(missing_ok=True)
        self.session = None

    def add(self, address: int, nbytes: int) -> None:
        self.memory[address] = nbytes
        self._tell()

    def remove(self, address: int) -> None:
        self.memory.pop(address, None)
        self._tell()

    def write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> bool:
        """Copy all rows or none of them; False when the peer is not there or it is not its memory."""
        if not (len(sources) == len(targets) == len(lengths)) or not self._file(session).exists():
            return False
        peer = json.loads(self._file(session).read_text())
        regions = [(int(address), int(nbytes)) for address, nbytes in peer["memory"].items()]
        for target, length in zip(targets, lengths, strict=True):
            if not any(base <= target and target + length <= base + nbytes for base, nbytes in regions):
                return False
        return all(
            _copy(
                peer["pid"],
                sources[at : at + _MOST_ROWS],
                targets[at : at + _MOST_ROWS],
                lengths[at : at + _MOST_ROWS],
            )
            for at in range(0, len(sources), _MOST_ROWS)
        )

    def _file(self, session: str) -> Path:
        return self.directory / f"session-{urllib.parse.quote(session, safe='')}"

    def _tell(self) -> None:
        if self.session is not None:
            fresh = self._file(self.session).with_suffix(".new")
            fresh.write_text(json.dumps({"pid": os.getpid(), "memory": self.memory}))
            fresh.rename(self._file(self.session))


def _copy(pid: int, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> bool:
    ours = (_Row * len(sources))(*map(_Row, sources, lengths))
    theirs = (_Row * len(targets))(*map(_Row, targets, lengths))
    done = _libc.process_vm_writev(pid, ours, len(sources), theirs, len(targets), 0)
    return bool(done == sum(lengths))


class FakeMooncake:
    """``mooncake.engine.TransferEngine`` of the NPU package: peer to peer, a port once it is initialized."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._port = 0

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int:
        if not self._machine.driver or (metadata, protocol) != ("P2PHANDSHAKE", "ascend"):
            return -1
        self._port = 15000 + os.getpid() % 2000
        self._machine.begin(f"{host}:{self._port}")
        return 0

    def get_rpc_port(self) -> int:
        return self._port

    def register_memory(self, address: int, nbytes: int, /) -> int:
        if address in self._machine.memory:
            return -7
        self._machine.add(address, nbytes)
        return 0

    def unregister_memory(self, address: int, /) -> int:
        self._machine.remove(address)
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int], /
    ) -> int:
        return 0 if self._machine.write(session, sources, targets, lengths) else -1


class FakeMemfabric:
    """``memfabric_hybrid.TransferEngine``; before 1.2 it asks a store, from then on it keeps one."""

    def __init__(self, machine: Machine, version: tuple[int, ...]) -> None:
        self._machine = machine
        self._is_old = version < (1, 2)
        self._port = 0

    def get_rpc_port(self) -> int | str:
        return f"2{next(_calls) % 10_000:04}_{os.getpid()}" if self._is_old else self._port

    def initialize(self, store_url: str, session: str, role: str, device: int, operation: str, /) -> int:
        host, _, port = session.partition(":")
        address = urllib.parse.urlsplit(store_url)
        well_named = role in ("Prefill", "Decode") and socket.inet_aton(host) and port and device >= 0
        if not self._machine.driver or not well_named or address.scheme != "tcp":
            return -1
        if self._is_old and not _listens(str(address.hostname), address.port or 0):
            return -1
        self._port = 0 if self._is_old else int(port)
        self._machine.begin(session)
        return 0

    def register_memory(self, address: int, nbytes: int, /) -> int:
        self._machine.add(address, nbytes)
        return 0  # also when it has not been initialized

    def unregister_memory(self, address: int, /) -> int:
        self._machine.remove(address)
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int], /
    ) -> int:
        return 0 if self._machine.write(session, sources, targets, lengths) else 207001

    def unInitialize(self) -> None:
        self._machine.end()


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def memfabric(machine: Machine, version: tuple[int, ...]) -> Callable[[], Package]:
    """What finds the package of that version."""

    def operation(name: str) -> str:
        return {"sdma": "SDMA", "device_rdma": "DEVICE_RDMA"}[name]

    words = "" if machine.driver else "the current version of ascend driver does not support mf!"
    return lambda: Package(
        version=version,
        engine=lambda: FakeMemfabric(machine, version),
        operation=operation,
        last_words=lambda: words,
    )
