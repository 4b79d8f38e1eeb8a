"""A rank as a child process: started with its spec on a pipe, watched by pidfd, never left behind.

A rank has its own process group, so that a terminal's Ctrl-C reaches the leader alone, which then ends its ranks in
order. The rank itself asks the kernel to end it with its leader.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from pdcore.engine.rank_spec import RankSpec
from pdcore.topology.keys import RankPosition

RANK_COMMAND: Final = (sys.executable, "-m", "pdcore.engine.rank")
PLUG_INS_WAIT: Final = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""torch loads every plug-in that is installed, and cannot be imported where one of them lacks its driver. Ranks load the
one that they are to use, and say what is wrong with it."""
LARGEST_SPEC: Final = 32 << 10  # less than a pipe holds, so that writing it never waits for the child


class RankProcess:
    """Use as ``with RankProcess(spec) as rank``; leaving kills what still runs and reaps it."""

    def __init__(self, spec: RankSpec, command: Sequence[str] = RANK_COMMAND) -> None:
        self._spec = spec
        self._command = command

    @property
    def position(self) -> RankPosition:
        """Where it stands in the instance."""
        return RankPosition(self._spec.dp, self._spec.cp, self._spec.tp)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def pidfd(self) -> int:
        """Readable once the process has exited; owned by this object."""
        return self._pidfd

    def __enter__(self) -> Self:
        spec = msgspec.msgpack.encode(self._spec)
        if len(spec) > LARGEST_SPEC:
            raise ValueError(f"a rank's spec of {len(spec)} bytes is larger than {LARGEST_SPEC}")
        reading, writing = os.pipe()
        try:
            os.write(writing, spec)  # whole: an empty pipe holds twice as much
            given = [fd for fd in (self._spec.beat_fd, self._spec.rendezvous_fd) if fd is not None]
            self._process = subprocess.Popen(
                [*self._command, "--spec-fd", str(reading)],
                stdin=subprocess.DEVNULL,
                pass_fds=(reading, *given),
                process_group=0,
                env={**os.environ, **PLUG_INS_WAIT},
            )
        finally:
            os.close(reading)
            os.close(writing)
        self._pidfd = os.pidfd_open(self._process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.wait()
        os.close(self._pidfd)

    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def kill(self) -> None:
        """SIGKILL, unless it has ended; leaving the block reaps it."""
        if not self.has_exited():
            self._process.kill()

    async def wait_exit(self) -> int:
        """Return once it has ended: its status as :mod:`subprocess` gives it (negative: the signal)."""
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        descriptor = os.dup(self._pidfd)  # a loop watches a descriptor once, and others may wait too
        loop.add_reader(descriptor, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.wait()
