"""The flags of cann-recipes-infer's ``server.py`` in one table: what each one stands for here.

Both spellings of a flag work, with dashes and with underscores; a list takes every word up to the next flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from pdcore.cli.machines import Lists
from pdcore.config import ENGINE, ROUTER
from pdcore.config.setting import Parse, integer, text
from pdcore.config.spelling import Spellings, dashed, typed
from pdcore.errors import ConfigError

_TYPED: Final = "pdcore.typed"
OF_A_ROUTER: Final = {"prefill_addrs": "prefill", "decode_addrs": "decode"}
"""What of the table is a router's, by the setting that it stands for there."""
CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Given = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFlag:
    """One flag of theirs. ``setting`` is the one of ours that it sets; without it, ``help`` says what it does."""

    name: str
    help: str
    setting: str | None = None
    parse: Parse = text
    metavar: str = "TEXT"
    many: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


RECIPE_FLAGS: Final = (
    RecipeFlag(
        name="yaml_file_path", setting="config", metavar="FILE", help="The role's YAML file, as --config."
    ),
    RecipeFlag(
        name="engine_backend",
        setting="transfer_engine",
        metavar="NAME",
        help="memfabric or mooncake, as --transfer-engine.",
    ),
    RecipeFlag(
        name="node_index",
        metavar="K",
        parse=integer(0, 1023),
        help="Which machine of its role this is, counted over all instances.",
    ),
    RecipeFlag(
        name="ips",
        many=True,
        metavar="IP...",
        help="The machines of this role, or prefill's and then decode's.",
    ),
    RecipeFlag(name="prefill_ips", many=True, metavar="IP...", help="All prefill machines."),
    RecipeFlag(name="decode_ips", many=True, metavar="IP...", help="All decode machines."),
    RecipeFlag(
        name="master_node",
        metavar="IP",
        help="The role's first machine, which says where in --ips it begins.",
    ),
    RecipeFlag(
        name="bootstrap_host", metavar="IP", help="This machine's address, or that of its instance's leader."
    ),
    RecipeFlag(name="prefill_addrs", many=True, metavar="IP...", help="A router's prefill leaders."),
    RecipeFlag(name="decode_addrs", many=True, metavar="IP...", help="A router's decode leaders."),
)
"""``--role``, ``--devices-per-node`` and ``--bootstrap-port`` are not here: they are settings of ours by the same name."""


class RecipeCommand(click.Command):
    """A command whose list flags take several words, and which remembers how flags were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, gathered(args))


def spellings() -> Spellings:
    """How the flags of the command that runs were typed, by the settings that they stand for."""
    arguments: tuple[str, ...] = click.get_current_context().meta[_TYPED]
    ours = {one.flag: one.setting for one in RECIPE_FLAGS if one.setting is not None}
    addresses = {f"--{dashed(name)}": setting for name, setting in OF_A_ROUTER.items()}
    return typed(arguments, (*ENGINE, *ROUTER), {**ours, **addresses})


def recipe_options(command: CommandT) -> CommandT:
    """Give a click command the flags of the table."""
    for one in reversed(RECIPE_FLAGS):
        command = click.option(one.flag, one.name, metavar=one.metavar, help=one.help)(command)
    return command


def gathered(arguments: Sequence[str]) -> list[str]:
    """The command line with the words of each list flag in one: ``--ips a b`` becomes ``--ips=a b``."""
    lists = {one.flag for one in RECIPE_FLAGS if one.many}
    found: list[str] = []
    taking = False
    for word in arguments:
        flag, equals, first = word.partition("=")
        if word.startswith("--"):
            taking = dashed(flag) in lists
            found.append(f"{flag}={first}" if taking or equals else flag)
        elif taking:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def machine_lists(given: Given, role: str) -> Lists:
    """What the flags say of machines. ConfigError for a value that cannot be."""
    index = _value(given, "node_index")
    return Lists(
        role=role,
        ips=_words(given, "ips"),
        prefill_ips=_words(given, "prefill_ips"),
        decode_ips=_words(given, "decode_ips"),
        node_index=None if index is None else int(index),
        master_node=_value(given, "master_node"),
        bootstrap_host=_value(given, "bootstrap_host"),
    )


def as_settings(given: Given) -> dict[str, str | None]:
    """``given`` by the names of our settings: the table's flags give their value to the setting that they stand for."""
    names = {one.name for one in RECIPE_FLAGS}
    flags = {name: value for name, value in given.items() if name not in names}
    for one in RECIPE_FLAGS:
        value = _value(given, one.name) if one.setting else None
        if one.setting is None or value is None:
            continue
        ours = flags.get(one.setting)
        if ours not in (None, value):
            raise ConfigError(f"{one.flag}: {value} contradicts --{dashed(one.setting)} {ours}")
        flags[one.setting] = value
    return flags


def _value(given: Given, name: str) -> str | None:
    one = next(flag for flag in RECIPE_FLAGS if flag.name == name)
    value = given.get(name)
    if value is not None:
        try:
            one.parse(value)
        except ValueError as wrong:
            raise ConfigError(f"{one.flag}: {wrong}") from None
    return value


def _words(given: Given, name: str) -> tuple[str, ...]:
    """The words of a list, by blanks or commas."""
    return tuple((given.get(name) or "").replace(",", " ").split())
