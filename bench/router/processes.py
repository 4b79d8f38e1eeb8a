"""The processes of a run: a router, its fake engines, the load; and what a process has used."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from bench.router.targets import PEERS, Target

ROUTER_CORE: Final = 0
LOAD_CORE: Final = 1
CHAT: Final = "/v1/chat/completions"
START_S: Final = 60.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Running:
    """A child process on one core; ``with`` ends it and what it has started."""

    def __init__(
        self, command: Sequence[str], core: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = ["taskset", "-c", str(core), *command]
        self._log = log
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        members = self._members()
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for member in members:
            if member.is_running() and member.pid != self.process.pid:
                member.kill()

    def cpu_s(self) -> float:
        """User and system seconds of the process and everything below it so far."""
        return sum(_cpu_s(member) for member in self._members())

    def rss_mb(self) -> float:
        """Memory in use, everything below it included."""
        return sum(_rss(member) for member in self._members()) / (1 << 20)

    def wait_idle(self, within_s: float = 30.0) -> None:
        """Return once it uses next to no CPU: what an aborted load left behind is done."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            before = self.cpu_s()
            time.sleep(0.3)
            if self.cpu_s() - before <= 0.02:
                return

    def wait_ready(self, is_ready: Callable[[], bool], within_s: float = START_S) -> float:
        """The seconds it took until ``is_ready``; RuntimeError with the end of its log if it never was."""
        began = time.monotonic()
        while time.monotonic() - began < within_s and self.process.poll() is None:
            if is_ready():
                return time.monotonic() - began
            time.sleep(0.1)
        said = self._log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(self._command)} did not start: {said}")

    def _members(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


class Engines(Running):
    """One fake prefill and one fake decode, in one process."""

    def __init__(self, log: Path) -> None:
        self.prefill, self.decode = free_port(), free_port()
        super().__init__(
            [str(PEERS / "stub"), f"{self.prefill}:prefill", f"{self.decode}:decode"], LOAD_CORE, log
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self.wait_ready(lambda: answers(f"http://127.0.0.1:{self.decode}/health"))
        return self

    def served(self) -> Mapping[str, int]:
        """Requests and chunks so far."""
        counts: Mapping[str, int] = fetch(f"http://127.0.0.1:{self.decode}/stub/stats")
        return counts

    def pace(self, interval_us: int, *, spread: bool) -> None:
        """A chunk per stream and interval, each stream with a phase of its own if ``spread``."""
        fetch(f"http://127.0.0.1:{self.decode}/stub/set?interval_us={interval_us}&spread={int(spread)}")


class Router(Running):
    """A started router that has answered its first request."""

    def __init__(self, target: Target, engines: Engines, log: Path) -> None:
        self.port = free_port()
        filled = {
            "port": self.port,
            "metrics": free_port(),
            "prefill": f"http://127.0.0.1:{engines.prefill}",
            "decode": f"http://127.0.0.1:{engines.decode}",
        }
        command = [part.format(**filled) for part in target.command]
        super().__init__(command, ROUTER_CORE, log, target.environment)
        self.started_s = 0.0

    def __enter__(self) -> Self:
        super().__enter__()
        self.started_s = self.wait_ready(lambda: answers(f"http://127.0.0.1:{self.port}{CHAT}", request()))
        return self


def request(prompt_bytes: int = 64) -> bytes:
    """A chat request with a prompt of that size."""
    words = "".join(" " if n % 6 == 5 else chr(97 + (n * 7 + n // 11) % 26) for n in range(prompt_bytes))
    message = {"role": "user", "content": words}
    document = {"model": "stub", "messages": [message], "max_tokens": 16, "temperature": 0.0}
    return json.dumps(document, separators=(",", ":")).encode()


def answers(url: str, body: bytes | None = None) -> bool:
    """Whether ``url`` answers 200, to a POST of JSON when there is a ``body``."""
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def fetch(url: str, within_s: float = 5.0) -> Any:
    """The JSON document at ``url``."""
    with urllib.request.urlopen(url, timeout=within_s) as answer:
        return json.loads(answer.read())
