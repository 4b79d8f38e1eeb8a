"""This machine and its processes, as the kernel tells: boot id, name, start times, pidfds."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_GONE_STATES: Final = frozenset({"Z", "X", "x"})


def boot_id() -> str:
    """A random id that changes with every boot; equal on two processes only if one kernel runs both."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def machine() -> str:
    """The machine's name, for people."""
    return socket.gethostname()


def process_started(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None when it is gone or waits to be reaped.

    Together with the pid it names one process for the whole uptime, so that a reused pid is not taken for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return parse_started(stat)


def parse_started(stat: str) -> int | None:
    """Field 22 of ``/proc/PID/stat``, None for a zombie. The name in field 2 may hold blanks and parentheses."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in _GONE_STATES:
        return None
    return int(fields[19])


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when ``pid`` exits. The caller closes it."""
    return os.pidfd_open(pid)


def has_exited(pidfd: int) -> bool:
    """Whether the process behind ``pidfd`` has exited (reaped or not)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def kill(pidfd: int) -> None:
    """SIGKILL exactly the process behind ``pidfd``; one that has exited already is no error."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
