"""Command lines with lists: a flag that takes every word up to the next flag, and may be given again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from pdcore.interruptible import Interruptible


class ListOption(click.Option):
    """An option that takes a list of words; only a :class:`ListCommand` lets it."""


class ListCommand(Interruptible):
    """A command whose list options take several words, by blanks or by repeating the flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lists = {
            flag: str(one.name) for one in self.params if isinstance(one, ListOption) for flag in one.opts
        }
        return super().parse_args(ctx, gathered(args, lists))


def gathered(arguments: Sequence[str], lists: Mapping[str, str]) -> list[str]:
    """The command line with the words of each list in one: ``--to a b --to c`` becomes ``--to=a b c``.

    ``lists`` maps every spelling of such a flag to the option's name.
    """
    found: list[list[str]] = []  # one per argument, behind a list's flag its words
    places: dict[str, list[str]] = {}
    taking: list[str] | None = None
    for word in arguments:
        flag, _, first = word.partition("=")
        if flag in lists:
            taking = places.get(lists[flag])
            if taking is None:
                taking = places[lists[flag]] = [flag]
                found.append(taking)
            taking += [first] if first else []
        elif taking is None or word.startswith("--"):
            taking = None
            found.append([word])
        else:
            taking.append(word)
    return [f"{one[0]}={' '.join(one[1:])}" if one[0] in lists else one[0] for one in found]
