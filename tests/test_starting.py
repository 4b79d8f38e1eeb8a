"""The first moments of every program: Ctrl-C ends it without a word, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from pdcore.cli.lazily import LazyGroup
from pdcore.interruptible import Interruptible
from pdcore.starting import INTERRUPTED, start

WITHIN_S = 20
PROGRAMS = (
    ("pdcore", "topology"),
    ("pdcore.router", "--store", "etcd://127.0.0.1:9"),
    ("pdcore.engine", "--role", "prefill", "--store", "etcd://127.0.0.1:9"),
    ("pdcore.registry.facade",),
    ("pdcore.engine.memfabric_store",),
)
LOADED_LATER = ("click", "msgspec", "structlog")
"""What a program has loaded when it is interrupted: in the middle of its start, and at the end of it."""


class _Loading(ModuleType):
    """A module in the middle of whose loading somebody presses Ctrl-C."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.unit
def test_ctrl_c_while_modules_load_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "loading", _Loading("loading"))
    with pytest.raises(SystemExit) as ended:
        start("loading:main")
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.unit
@pytest.mark.parametrize("kind", [Interruptible, LazyGroup])
def test_ctrl_c_within_a_command_is_quiet(kind: type[click.Command]) -> None:
    command: click.Command
    if kind is LazyGroup:
        command = LazyGroup("group", lazy={})
        command.add_command(click.Command("one", callback=interrupted))
    else:
        command = Interruptible("one", callback=interrupted)
    done = CliRunner().invoke(command, ["one"] if kind is LazyGroup else [])
    assert (done.exit_code, done.output) == (INTERRUPTED, "")


@pytest.mark.integration
@pytest.mark.parametrize("loaded", LOADED_LATER)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_a_program_that_is_interrupted_as_it_starts_is_quiet(program: tuple[str, ...], loaded: str) -> None:
    watching = (
        "import os, runpy, signal, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {loaded!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", watching, *program],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env={**os.environ, "PDCORE_STORE": "etcd://127.0.0.1:9"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
