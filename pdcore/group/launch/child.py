"""One running member: a process with everything it starts, its output as lines, and its certain end.

Each child leads a session of its own. That keeps a terminal's Ctrl-C away from it (the supervisor ends members in
order) and names all that it starts: whatever is left of the session when the child is gone gets a moment to finish
(a registrar writes why its instance left) and is then killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from pdcore.group.launch import tether
from pdcore.group.launch.members import Member

OnLine = Callable[[str], None]

LONGEST_LINE_BYTES: Final = 16 << 10
LEFTOVERS_S: Final = 2.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Grace:
    """How politely children are ended: SIGTERM, ``seconds`` to obey (none once ``hurry`` is set), SIGKILL."""

    seconds: float
    hurry: asyncio.Event


class Child(asyncio.SubprocessProtocol):
    """A started member. A grandchild that outlives it may keep its output open; that does not delay its exit here."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._partial = b""
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.SubprocessTransport | None = None

    @property
    def pid(self) -> int:
        return self._opened.get_pid()

    @property
    def has_exited(self) -> bool:
        return self._opened.get_returncode() is not None

    async def wait_exited(self) -> int:
        """The exit status, negative for a signal, once the process is gone. Raises what ``on_line`` raised."""
        return await asyncio.shield(self._exited)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to the process alone; one that has exited is past it."""
        with suppress(ProcessLookupError):
            self._opened.send_signal(number)

    def close(self) -> None:
        """Let go of the output. The process must have exited."""
        self._opened.close()
        if self._exited.done():
            self._exited.exception()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) >= LONGEST_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        self._hand_over(lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._hand_over([self._partial] if self._partial else [])
        self._partial = b""

    def process_exited(self) -> None:
        status = self._opened.get_returncode()
        assert status is not None
        if not self._exited.done():
            self._exited.set_result(status)

    def _hand_over(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                self._on_line(line.rstrip(b"\r").decode("utf-8", errors="replace"))
        except OSError as unwritable:  # whoever read our log is gone; the supervisor decides what that means
            if not self._exited.done():
                self._exited.set_exception(unwritable)

    @property
    def _opened(self) -> asyncio.SubprocessTransport:
        assert self._transport is not None, "not started"
        return self._transport


@asynccontextmanager
async def running(member: Member, on_line: OnLine, grace: Grace) -> AsyncIterator[Child]:
    """Start ``member``, hand every line it writes to ``on_line``; leaving ends it with all that it started.

    Its temporary files go into a directory that is removed afterwards: a killed process cannot tidy up.
    """
    with tempfile.TemporaryDirectory(prefix="pdcore-", ignore_cleanup_errors=True) as scratch:
        async with _started(member, on_line, grace, scratch) as child:
            yield child


@asynccontextmanager
async def _started(member: Member, on_line: OnLine, grace: Grace, scratch: str) -> AsyncIterator[Child]:
    argv = (sys.executable, "-IS", str(Path(tether.__file__)), str(os.getpid()), *member.argv)
    environ = {**os.environ, **member.secrets, "TMPDIR": scratch}
    _, child = await asyncio.get_running_loop().subprocess_exec(
        lambda: Child(on_line),
        *argv,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
        env=environ,
    )
    try:
        yield child
    finally:
        try:
            await _end(child, grace)
        finally:
            _kill_session(child.pid)
            await _wait_until(lambda: child.has_exited, LEFTOVERS_S)
            child.close()


async def _end(child: Child, grace: Grace) -> None:
    """SIGTERM and wait, SIGKILL; then a moment for the processes it leaves behind."""
    if not child.has_exited:
        child.signal(signal.SIGTERM)
        await _wait_until(lambda: child.has_exited, grace.seconds, grace.hurry)
        child.signal(signal.SIGKILL)
    await _wait_until(lambda: not session_members(child.pid), LEFTOVERS_S, grace.hurry)


async def _wait_until(
    condition: Callable[[], bool], seconds: float, hurry: asyncio.Event | None = None
) -> None:
    """Return when ``condition`` holds, or after ``seconds``, or at once when ``hurry`` is set."""
    deadline = time.monotonic() + seconds
    never = hurry or asyncio.Event()
    while not condition() and time.monotonic() < deadline:
        with suppress(TimeoutError):
            await asyncio.wait_for(never.wait(), POLL_S)
            return


def _kill_session(session: int) -> None:
    for pid in session_members(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def session_members(session: int) -> list[int]:
    """Live processes (no zombies) of the session or process group that ``session`` leads."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _belongs(entry, session)]


def _belongs(pid: str, session: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # it ended while we looked
    # The name, in parentheses, may itself hold spaces and parentheses.
    state, _parent, group, its_session = stat.rpartition(")")[2].split()[:4]
    return state not in "ZX" and session in (int(group), int(its_session))
