"""Where values come from: the command line, else the environment, else the file, else the default.

The environment is read in this package and nowhere else. Everything that is wrong is reported together, each problem
naming flag and variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import click

from pdcore.config.engine import ENGINE
from pdcore.config.facade import FACADE
from pdcore.config.file import CONFIG_FILE, read_file
from pdcore.config.memfabric_store import MEMFABRIC_STORE
from pdcore.config.router import ROUTER
from pdcore.config.setting import Setting
from pdcore.config.up import UP
from pdcore.config.words import ListOption
from pdcore.errors import ConfigError

SECTIONS: Final[Mapping[str, Sequence[Setting]]] = {
    "engine": ENGINE,
    "facade": FACADE,
    "memfabric_store": MEMFABRIC_STORE,
    "router": ROUTER,
    "up": UP,
}
PRECEDENCE: Final = "A flag wins over its variable, that over the file, that over the default."
Default = str | None | Callable[[], str | None]
ConfigT = TypeVar("ConfigT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def load(
    config: type[ConfigT],
    settings: Sequence[Setting],
    flags: Mapping[str, str | None],
    *,
    section: str,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Default] | None = None,
    ignored: list[str] | None = None,
) -> ConfigT:
    """Build ``config`` from the four sources, or raise :class:`ConfigError` with every problem.

    ``flags`` holds the command line by setting name (plus ``config``, the file). ``section`` is the process's table
    in the file; keys outside any table hold for every process. ``defaults`` adds defaults only known at run time; a
    callable is asked only when nothing else says. The file's keys that nothing uses are appended to ``ignored``.
    """
    env = os.environ if environ is None else environ
    role = flags.get("role") or env.get("PDCORE_ROLE")
    file = read_file(flags.get("config") or env.get("PDCORE_CONFIG"), section, role, SECTIONS)
    problems = list(file.problems)
    if ignored is not None:
        ignored.extend(file.ignored)
    values: dict[str, object] = {}
    for setting in settings:
        raw = _first_given(setting, flags, env, file.values, defaults or {})
        if raw is None:
            values[setting.name] = None
            continue
        try:
            values[setting.name] = setting.parse(raw)
        except ValueError as wrong:
            shown = "the value" if setting.secret else str(wrong)
            problems.append(f"{setting.shown}: {shown}")
    optional = {f.name for f in fields(config) if "None" in str(f.type)}  # type: ignore[arg-type]
    problems += [
        f"{s.shown} is missing: {s.help}"
        for s in settings
        if values.get(s.name, "") is None and s.name not in optional
    ]
    if problems:
        raise ConfigError(*problems)
    return config(**values)


def options(settings: Sequence[Setting]) -> Callable[[CommandT], CommandT]:
    """A decorator that gives a click command one option per setting, and ``--config``."""

    def decorate(command: CommandT) -> CommandT:
        for setting in reversed(settings):
            if setting.secret:
                continue
            default = f" [default: {setting.default}]" if setting.default is not None else ""
            help_text = f"{setting.help}{default} [{', '.join(setting.variables)}]"
            command = click.option(
                *setting.flags,
                setting.name,
                metavar=setting.metavar,
                help=help_text,
                cls=ListOption if setting.many else click.Option,
            )(command)
        file_help = (
            f"TOML file with the same names, ./{CONFIG_FILE} if it is there; for engines also a directory with"
            f" prefill.yaml and decode.yaml, or one of them. {PRECEDENCE} [PDCORE_CONFIG]"
        )
        return click.option("--config", "config", metavar="FILE", help=file_help)(command)

    return decorate


def _first_given(
    setting: Setting,
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    file_values: Mapping[str, str],
    defaults: Mapping[str, Default],
) -> str | None:
    given = flags.get(setting.name)
    if given is not None:
        return given
    for variable in setting.variables:
        if env.get(variable):
            return env[variable]
    if setting.name in file_values:
        return file_values[setting.name]
    default = defaults.get(setting.name)
    return (default() if callable(default) else default) or setting.default


def environment() -> Mapping[str, str]:
    """This process's environment as it is now, for what other programs' variables say."""
    return dict(os.environ)
