"""What the documents say can be done can be done, and what they list is what there is."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import pytest

from pdcore.cli import main
from pdcore.config import ENGINE, FACADE, ROUTER
from pdcore.config.memfabric_store import MEMFABRIC_STORE

ROOT: Final = Path(__file__).parent.parent
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
SETTINGS: Final = {
    "pdcore.engine": ENGINE,
    "pdcore.router": ROUTER,
    "pdcore.registry.facade": FACADE,
    "pdcore.engine.memfabric_store": MEMFABRIC_STORE,
}
FIRST_SCREEN_LINES: Final = 30
COMMAND: Final = re.compile(r"`((?:make |pdcore |python -m pdcore)[^`\n]*)`")
FENCED: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command line of every document: in fences and in running text."""
    found: list[str] = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        found += [
            line.partition("#")[0].strip() for block in FENCED.findall(text) for line in block.splitlines()
        ]
        found += COMMAND.findall(text)
    return sorted(set(filter(None, found)))


@pytest.mark.unit
def test_the_first_screen_has_the_picture_and_the_two_commands() -> None:
    first = README.splitlines()[:FIRST_SCREEN_LINES]
    text = "\n".join(first)
    assert "prefill" in text
    assert "──" in text
    assert any(line.startswith("make demo") for line in first)
    assert any(line.startswith("make test") for line in first)


@pytest.mark.unit
@pytest.mark.parametrize("command", commands())
def test_every_documented_command_exists_with_its_options(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        _check_make(arguments)
    elif program == "pdcore":
        _check_pdcore(arguments)
    elif program == "python":
        _check_module(arguments)
    else:
        assert program == "etcdctl"


def _check_make(arguments: list[str]) -> None:
    run = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    assert run.returncode == 0, run.stderr


def _check_pdcore(arguments: list[str]) -> None:
    if not arguments:
        return
    command: click.Command = main
    for word in arguments:
        command = _within(command, word) or command
    assert command is not main, f"there is no command {arguments[0]}"
    known = {
        option
        for parameter in command.params
        for option in parameter.opts
        if isinstance(parameter, click.Option)
    }
    spelled = command.context_settings.get("token_normalize_func", str)
    assert {spelled(word.partition("=")[0]) for word in arguments if word.startswith("--")} <= known


def _within(command: click.Command, word: str) -> click.Command | None:
    return command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None


def _check_module(arguments: list[str]) -> None:
    assert arguments[0] == "-m"
    assert importlib.util.find_spec(f"{arguments[1]}.__main__") is not None
    known = {setting.flag for setting in SETTINGS[arguments[1]]}
    assert {word for word in arguments if word.startswith("--")} <= known


@pytest.mark.unit
def test_the_settings_are_those_of_the_code() -> None:
    run = subprocess.run(
        [sys.executable, "scripts/settings_table.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    between = README.partition("writes what follows -->\n")[2].partition("\n<!-- end of settings -->")[0]
    assert between.strip() == run.stdout.strip()


@pytest.mark.unit
def test_links_between_documents_lead_somewhere() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / target).exists(), f"{name} links to {target}"


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_answers_with_paris_and_shows_keyspace_and_fleet() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pdcore", "demo"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Paris" in run.stdout
    assert "/pdcore/default/view/instances/prefill-1" in run.stdout
    assert "cluster default at revision" in run.stdout
