"""The commands on a group, as far as no group need run: what they refuse, and how."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from pdcore.cli import main

pytestmark = pytest.mark.unit

NOWHERE = ("--store", "etcd://127.0.0.1:1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def group_file(directory: Path, mode: str) -> Path:
    file = directory / "group.yaml"
    roles = [{"name": name} for name in ("prefill", "decode", "router")]
    spec = {"name": "g", "model": "m", "disaggregation": {"mode": mode}, "roles": roles}
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


@pytest.mark.parametrize("mode", ["vllm-nixl", "sglang-mooncake"])
def test_up_starts_no_engines_that_need_an_agent(tmp_path: Path, mode: str) -> None:
    done = run("up", str(group_file(tmp_path, mode)), *NOWHERE)
    assert done.exit_code == 2
    assert f"engines of mode {mode} need an agent on their machines, which is not there yet" in done.output


def test_up_with_a_groups_file_takes_its_word_for_the_members(tmp_path: Path) -> None:
    done = run("up", str(group_file(tmp_path, "vllm-nixl")), "--prefill", "3", *NOWHERE)
    assert done.exit_code == 2
    assert "--prefill is of no use with a group's file, which says it" in done.output


@pytest.mark.parametrize("flag", ["--role", "--member"])
def test_there_is_no_restart_of_a_part(flag: str) -> None:
    done = run("group", "restart", "g", flag, "prefill", *NOWHERE)
    assert done.exit_code == 2
    assert (
        "only a whole group is restarted: a part of it would run a new generation beside an old one"
        in done.output
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("scale", "g"), "say --prefill, --decode or --router with a number, or --undo alone"),
        (("scale", "g", "--undo", "--prefill", "1"), "or --undo alone"),
        (("scale", "g", "--prefill", "0"), "0 is not in the range"),
        (("delete", "g"), "say --yes to do it"),
        (("status", "a/b"), "GROUP: 'a/b' must be"),
        (("apply", "/nowhere/group.yaml"), "/nowhere/group.yaml"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(
    arguments: tuple[str, ...], says: str
) -> None:
    done = run("group", *arguments, *NOWHERE)
    assert done.exit_code == 2
    assert says in done.output
