"""The last view in a file, for a start while the store is away: raw keys as JSON, replaced whole or not at all.

A file is believed only when it is this user's own, nobody else may write it, it is of this cluster and of a size that
a view has. Everything that is read from it is suspect anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec

from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.errors import PdcoreError
from pdcore.registry.follower import Follower
from pdcore.telemetry import logger
from pdcore.topology.codec import Rejected
from pdcore.topology.topology import Stored, Topology, build

VERSION: Final = 1
MAX_BYTES: Final = 64 << 20
WRITE_EVERY_S: Final = 5.0
OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_log = logger(__name__)


_Revision = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    cluster: str
    revision: _Revision
    keys: dict[str, tuple[str, _Revision]]


class NoCache(PdcoreError):
    """The file cannot be used; the message says why."""


def encode(topology: Topology, cluster: str) -> bytes:
    """``topology`` as the file holds it; what is no record is left out."""
    entries = (pair for part in topology.parts.values() for pair in part.items())
    keys = {
        key: (entry.value.decode(), entry.mod_revision)
        for key, entry in entries
        if not isinstance(entry.record, Rejected)
    }
    return msgspec.json.encode(_File(v=VERSION, cluster=cluster, revision=topology.revision, keys=keys))


def decode(raw: bytes, cluster: str) -> Topology:
    """The topology that ``raw`` holds. Raises NoCache for anything else than a view of ``cluster``."""
    try:
        file = msgspec.json.decode(raw, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise NoCache(f"it is no cached view: {wrong}") from wrong
    if file.v != VERSION:
        raise NoCache(f"it is of version {file.v}, not {VERSION}")
    if file.cluster != cluster:
        raise NoCache(f"it is of cluster {file.cluster[:128]}, not {cluster}")
    listed = {key: Stored(value.encode(), revision) for key, (value, revision) in file.keys.items()}
    return build(listed, file.revision)


def read(path: Path, cluster: str) -> Topology | None:
    """The view in the file; None, and a line in the log, when there is none that can be used."""
    try:
        topology = decode(_bytes_of(path), cluster)
    except FileNotFoundError:
        _log.info("no cached view yet", file=str(path))
    except (OSError, NoCache) as wrong:
        _log.warning("cached view ignored", file=str(path), reason=str(wrong))
    else:
        _log.info(
            "cached view read", file=str(path), revision=topology.revision, instances=len(topology.instances)
        )
        return topology
    return None


def write(path: Path, topology: Topology, cluster: str) -> None:
    """Replace the file, for this user only. Raises OSError, and NoCache when it would be too large to be read."""
    raw = encode(topology, cluster)
    if len(raw) > MAX_BYTES:
        raise NoCache(f"the view has {len(raw)} bytes, more than {MAX_BYTES}")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@asynccontextmanager
async def keeping(path: Path | None, follower: Follower, cluster: str, clock: Clock) -> AsyncIterator[None]:
    """Inside the block, and a last time when it is left: write what ``follower`` knows, at most every few seconds."""
    if path is None:
        yield
        return
    keeper = _Keeper(path, follower, cluster)
    async with running_beside(keeper.keep(clock)):
        yield
    await keeper.save()


class _Keeper:
    def __init__(self, path: Path, follower: Follower, cluster: str) -> None:
        self._path = path
        self._follower = follower
        self._cluster = cluster
        self._saved: Topology | None = None
        self._trouble: str | None = None

    async def keep(self, clock: Clock) -> None:
        while True:
            await self.save()
            await clock.sleep(WRITE_EVERY_S)

    async def save(self) -> None:
        """Write the view unless it is written already; trouble is told once and ends nothing."""
        topology = self._follower.topology
        if not self._follower.synced or topology is self._saved:
            return
        try:
            await asyncio.to_thread(write, self._path, topology, self._cluster)
            self._saved, self._trouble = topology, None
        except (OSError, NoCache) as wrong:
            if self._trouble != str(wrong):
                _log.warning("view not cached", file=str(self._path), reason=str(wrong))
            self._trouble = str(wrong)


def _bytes_of(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NoCache("it is no regular file")
        if status.st_uid != os.geteuid() or status.st_mode & OTHERS_MAY_WRITE:
            raise NoCache("others may have written it")
        if status.st_size > MAX_BYTES:
            raise NoCache(f"it has {status.st_size} bytes, more than {MAX_BYTES}")
        return file.read(MAX_BYTES)
