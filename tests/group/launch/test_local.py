"""The supervisor with real processes: small scripts that misbehave in every way."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.group.launch.child import Grace, session_members
from pdcore.group.launch.local import MemberGaveUp, Supervisor
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import Member
from tests.support.eventually import eventually, eventually_now

pytestmark = pytest.mark.integration

POLITE_S = 5.0


class JumpingClock:
    """Time as the machine has it, except that sleeping takes none and is written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Stage:
    """A supervisor with its log, and scripts as members that write down their pids."""

    def __init__(self, directory: Path, grace_s: float = POLITE_S) -> None:
        self.directory = directory
        self.output = io.StringIO()
        self.clock = JumpingClock()
        self.hurry = asyncio.Event()
        self.log = PrefixedLog(self.output, ("store", "first", "second"))
        self.supervisor = Supervisor(self.log, Grace(grace_s, self.hurry), self.clock)

    def member(self, name: str, script: str) -> Member:
        return Member(
            name=name, argv=(sys.executable, "-S", "-c", textwrap.dedent(script), str(self.directory))
        )

    def lines(self, name: str) -> list[str]:
        prefix = f"{name:<6} | "
        return [
            line.removeprefix(prefix)
            for line in self.output.getvalue().splitlines()
            if line.startswith(prefix)
        ]

    async def said(self, name: str, count: int = 1) -> list[str]:
        await eventually(lambda: len(self.lines(name)) >= count, 10, f"{name} says {count} lines")
        return self.lines(name)


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


PIDS = "import os, sys, time\nprint(os.getpid(), flush=True)\n"
FOREVER = PIDS + "time.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PIDS + "time.sleep(600)\n"
WITH_CHILD = PIDS + (
    "import subprocess\n"
    "code = 'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'\n"
    "code += 'print(os.getpid(), flush=True); time.sleep(600)'\n"
    "subprocess.Popen([sys.executable, '-S', '-c', code])\n"
    "time.sleep(600)\n"
)


def alive(pid: int) -> bool:
    return bool(session_members(pid)) or (Path(f"/proc/{pid}").exists() and _state(pid) not in "ZX")


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


async def test_leaving_the_block_ends_the_members(stage: Stage) -> None:
    async with stage.supervisor.keeping([stage.member("first", FOREVER), stage.member("second", FOREVER)]):
        pids = [int((await stage.said(name))[0]) for name in ("first", "second")]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


async def test_what_members_write_is_one_prefixed_log(stage: Stage) -> None:
    script = "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\ntime.sleep(600)"
    async with stage.supervisor.keeping([stage.member("first", script)]):
        assert await stage.said("first", 2) == ["out", "err"]


async def test_a_member_that_exits_is_started_again_with_growing_delays(stage: Stage) -> None:
    async with stage.supervisor.keeping([stage.member("first", PIDS + "sys.exit(7)")]):
        pids = await stage.said("first", 4)
        await eventually(lambda: len(stage.clock.slept) >= 4, 10)
    assert len(set(pids[:4])) == 4
    assert stage.clock.slept[:4] == [0, 1, 2, 4]
    assert "first exited with 7; starting it again now" in stage.lines("pdcore")
    assert "first exited with 7; starting it again in 1 s" in stage.lines("pdcore")


async def test_a_killed_member_is_started_again(stage: Stage) -> None:
    async with stage.supervisor.keeping([stage.member("first", FOREVER)]):
        first = int((await stage.said("first"))[0])
        os.kill(first, signal.SIGKILL)
        second = int((await stage.said("first", 2))[1])
        assert alive(second)
    assert "first was ended by signal 9; starting it again now" in stage.lines("pdcore")


async def test_exit_status_2_ends_everything_and_says_why(stage: Stage) -> None:
    script = "import sys\nprint('--model / PDCORE_MODEL is missing', flush=True)\nsys.exit(2)"
    stores: list[int] = []

    async def keep_both() -> None:
        async with stage.supervisor.keeping([stage.member("store", FOREVER)]):
            stores.append(int((await stage.said("store"))[0]))
            async with stage.supervisor.keeping([stage.member("first", script)]):
                await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as group:
        await keep_both()
    gave_up = _only(group.value)
    assert isinstance(gave_up, MemberGaveUp)
    assert (gave_up.name, gave_up.status, gave_up.line) == ("first", 2, "--model / PDCORE_MODEL is missing")
    assert not alive(stores[0])


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


async def test_inner_members_end_before_outer_ones(stage: Stage) -> None:
    script = """
        import os, signal, sys, time
        def end(*_):
            with open(sys.argv[1] + '/order', 'a') as order:
                order.write(NAME + ' ')
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print(os.getpid(), flush=True)
        time.sleep(600)
    """
    outer = stage.member("store", script.replace("NAME", "'store'"))
    inner = stage.member("first", script.replace("NAME", "'first'"))
    async with stage.supervisor.keeping([outer]), stage.supervisor.keeping([inner]):
        await stage.said("store")
        await stage.said("first")
    assert (stage.directory / "order").read_text().split() == ["first", "store"]


async def test_a_member_deaf_to_sigterm_is_killed_when_its_grace_is_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path, grace_s=0.2)
    async with stage.supervisor.keeping([stage.member("first", STUBBORN)]):
        pid = int((await stage.said("first"))[0])
    assert not alive(pid)


async def test_hurrying_ends_the_grace_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, grace_s=600)
    async with stage.supervisor.keeping([stage.member("first", STUBBORN)]):
        pid = int((await stage.said("first"))[0])
        stage.hurry.set()
    assert not alive(pid)


async def test_grandchildren_go_too(stage: Stage) -> None:
    async with stage.supervisor.keeping([stage.member("first", WITH_CHILD)]):
        pids = [int(line) for line in await stage.said("first", 2)]
        stage.hurry.set()
    assert not any(map(alive, pids))


async def test_what_a_dead_member_left_behind_is_gone_before_it_starts_again(stage: Stage) -> None:
    async with stage.supervisor.keeping([stage.member("first", WITH_CHILD)]):
        parent, child = (int(line) for line in await stage.said("first", 2))
        stage.hurry.set()
        os.kill(parent, signal.SIGKILL)
        await stage.said("first", 3)
        assert not alive(child)


async def test_what_a_killed_member_left_in_its_temporary_directory_is_removed(stage: Stage) -> None:
    script = "import tempfile, time\nprint(tempfile.mkdtemp(), flush=True)\ntime.sleep(600)"
    async with stage.supervisor.keeping([stage.member("first", script)]):
        left = (await stage.said("first"))[0]
        assert _exists(left)
        stage.hurry.set()
    assert not _exists(left)
    assert not _exists(os.path.dirname(left))


async def test_a_line_without_end_does_not_fill_memory(stage: Stage) -> None:
    script = "import sys, time\nsys.stdout.write('x' * 2_000_000)\nprint(flush=True)\nprint('done', flush=True)\ntime.sleep(600)"
    async with stage.supervisor.keeping([stage.member("first", script)]):
        await eventually(lambda: "done" in stage.lines("first"), 10)
    assert sum(map(len, stage.lines("first"))) == 2_000_000 + len("done")
    assert max(map(len, stage.lines("first"))) <= 512 * 1024


def test_members_end_even_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    script = """
        import asyncio, sys
        from pdcore.group.launch.child import Grace
        from pdcore.group.launch.local import Supervisor
        from pdcore.group.launch.log import PrefixedLog
        from pdcore.group.launch.members import Member

        async def main() -> None:
            supervisor = Supervisor(PrefixedLog(sys.stdout, ("first",)), Grace(5, asyncio.Event()))
            code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
            async with supervisor.keeping([Member(name="first", argv=(sys.executable, "-S", "-c", code))]):
                await asyncio.Event().wait()

        asyncio.run(main())
    """
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline().partition("|")[2])
        assert alive(pid)
        supervisor.kill()
    eventually_now(lambda: not alive(pid), 10)


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    marker = str(tmp_path).encode()
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _mentions(pid, marker)]
    assert left == []


def _mentions(pid: str, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/cmdline").read_bytes() and int(pid) != os.getpid()
    except OSError:
        return False
