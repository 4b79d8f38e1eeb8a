"""A child process a test owns: started, ended, killed, stopped and continued by its pid, never by a name."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

END_S: Final = 5.0


def free_port() -> int:
    """A loopback TCP port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ChildProcess:
    """One program run as a child; its output goes to ``log``. Leaving the block ends it, however it stands.

    A child outlives the test run only if the test process is killed together with its ``finally`` blocks.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.arguments = tuple(arguments)
        self.log = log
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The child's pid; AssertionError when it was never started."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs or before it starts."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Run it (again)."""
        assert not self.running, "already running"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if self._environ is None else {**os.environ, **self._environ},
            )

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough; a stopped child is continued first."""
        if not self.running:
            return
        self.resume()
        self.signal(signal.SIGTERM)
        try:
            self.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        if self.running:
            self.signal(signal.SIGKILL)
            self.wait(END_S)

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets and answers nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number``; nothing happens when it has already exited."""
        if self.running:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Its exit status; subprocess.TimeoutExpired when it does not exit in time."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout_s)

    def output(self) -> str:
        """Everything it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
