"""Command lines with lists."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pdcore.config.words import ListCommand, ListOption, gathered

pytestmark = pytest.mark.unit

LISTS = {"--to": "to", "--to-all": "to", "--by": "by"}


@pytest.mark.parametrize(
    ("words", "gathers"),
    [
        ("--to a b --x y", ["--to=a b", "--x", "y"]),
        ("--to a --x y --to b", ["--to=a b", "--x", "y"]),
        ("--to=a b", ["--to=a b"]),
        ("--to a --to-all b", ["--to=a b"]),
        ("--to-all a --by c --to b", ["--to-all=a b", "--by=c"]),
        ("--to a=b --x=y z", ["--to=a=b", "--x=y", "z"]),
        ("--to", ["--to="]),
        ("z --x y", ["z", "--x", "y"]),
        ("", []),
    ],
)
def test_a_list_takes_every_word_up_to_the_next_flag_and_may_be_given_again(
    words: str, gathers: list[str]
) -> None:
    assert gathered(words.split(), LISTS) == gathers


def test_a_command_gets_them_with_blanks_between() -> None:
    @click.command(cls=ListCommand)
    @click.option("--to", "to", cls=ListOption)
    @click.option("--x")
    def say(to: str, x: str) -> None:
        click.echo(f"{to}|{x}")

    assert CliRunner().invoke(say, "--to a b --x y --to c".split()).output == "a b c|y\n"
