"""A program that cannot be started is one line that names it, and the exit status of what cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdcore.group.launch import tether
from pdcore.group.launch.diagnosis import Diagnosis

pytestmark = pytest.mark.integration


def started(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-IS", tether.__file__, str(os.getpid()), program, "serve"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program\n")
    for program, says in (
        ("no-such-engine", "no-such-engine: command not found"),
        (f"{tmp_path}/engine", f"{tmp_path}/engine: command not found"),
        (str(text), f"{text}: cannot be executed: Permission denied"),
    ):
        ended = started(program)
        assert (ended.returncode, ended.stderr.splitlines()) == (2, [says])
        diagnosis = Diagnosis()
        diagnosis.line(says)
        assert diagnosis.sentence(2) == f"the command is not installed [not_in_image]: {says}"
