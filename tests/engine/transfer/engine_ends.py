"""The two ends of a transfer engine as a test holds them: processes that can be stopped and killed."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.eventually import eventually_now

CALL_S: Final = 90.0
_ROOT: Final = Path(__file__).parents[3]
_tokens = itertools.count(1)


class EndProcess:
    """One end. ``prefix`` goes before the command line: where the process runs."""

    def __init__(self, side: str, engine: str, runtime_dir: Path, prefix: Sequence[str] = ()) -> None:
        module = "tests.engine.transfer.engine_process"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, side, engine, str(runtime_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )

    def tell(self, name: str, *arguments: object) -> None:
        """Call without waiting for the answer; a stopped process does it when it goes on."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> object:
        """The answer to the oldest call that has none yet."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], CALL_S)[0], "no answer in time"
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(10)}"
        return json.loads(line)

    def ask(self, name: str, *arguments: object) -> object:
        """Call and wait."""
        self.tell(name, *arguments)
        return self.answer()

    def write(self, token: str, rows: Sequence[tuple[int, int, int]], seq: int) -> dict[str, object]:
        """How a write ended."""
        result = self.ask("write", token, rows, seq)
        assert isinstance(result, dict)
        return result

    def ended(self) -> dict[str, object]:
        """How the last write of ``start`` ended: the one under way, unless one had failed before."""
        result = self.ask("ended")
        assert isinstance(result, dict)
        return result

    def failed(self) -> dict[str, object]:
        """How the write of ``start`` ended that failed, which the next one is to."""
        result = self.ask("failed")
        assert isinstance(result, dict)
        return result

    def has_heard(self, *news: object) -> bool:
        """Whether exactly this was among what the end heard."""
        heard = self.ask("heard")
        assert isinstance(heard, list)
        return list(news) in heard

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        eventually_now(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", 5, "the stop")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """Kill it however it stands."""
        os.kill(self.process.pid, signal.SIGKILL) if self.process.poll() is None else None
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Pair:
    """Both ends of one engine, started when they are needed, with links made by tokens."""

    def __init__(self, engine: str, runtime_dir: Path, prefix: Sequence[str] = ()) -> None:
        self.engine = engine
        self._runtime_dir = runtime_dir
        self._prefix = prefix
        self._made: list[EndProcess] = []
        self.sender = self._start("sender")
        self.receiver = self._start("receiver")

    def restart(self) -> None:
        """New processes for those that ended."""
        if self.sender.process.poll() is not None:
            self.sender = self._start("sender")
        if self.receiver.process.poll() is not None:
            self.receiver = self._start("receiver")

    def link(self, *seqs: int) -> str:
        """A new link on which ``seqs`` are allowed; its token."""
        token = next(_tokens).to_bytes(16, "big").hex()
        self.receiver.ask("connect", self.sender.ask("endpoint"), token)
        eventually_now(lambda: self.sender.has_heard("Linked", token), 20, "the link")
        if self.engine != "shm":
            eventually_now(lambda: self.receiver.has_heard("Linked", token, 0), 20, "the welcome")
        for seq in seqs:
            self.receiver.ask("allow", token, seq)
        return token

    def unlink(self, token: str) -> None:
        """Give a link up on both sides."""
        self.receiver.ask("disconnect", token)
        eventually_now(lambda: self.sender.has_heard("Lost", token), 20, "the end of the link")
        self.sender.ask("release", token)

    def close(self) -> None:
        for end in self._made:
            end.close()

    def _start(self, side: str) -> EndProcess:
        end = EndProcess(side, self.engine, self._runtime_dir, self._prefix)
        self._made.append(end)
        return end
