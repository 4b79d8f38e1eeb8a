"""Where values come from: the command line, else the environment, else ``pdcore.toml``, else the default.

The environment is read in this package and nowhere else. Everything that is wrong is reported together, each problem
naming flag and variable.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pdcore.config.engine import ENGINE
from pdcore.config.facade import FACADE
from pdcore.config.router import ROUTER
from pdcore.config.setting import Setting
from pdcore.config.up import UP
from pdcore.errors import ConfigError

CONFIG_FILE: Final = "pdcore.toml"
SECTIONS: Final[Mapping[str, Sequence[Setting]]] = {
    "engine": ENGINE,
    "facade": FACADE,
    "router": ROUTER,
    "up": UP,
}
ConfigT = TypeVar("ConfigT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def load(
    config: type[ConfigT],
    settings: Sequence[Setting],
    flags: Mapping[str, str | None],
    *,
    section: str,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, str | None] | None = None,
) -> ConfigT:
    """Build ``config`` from the four sources, or raise :class:`ConfigError` with every problem.

    ``flags`` holds the command line by setting name (plus ``config``, the file). ``section`` is the process's table
    in the file; keys outside any table hold for every process. ``defaults`` adds defaults only known at run time.
    """
    env = os.environ if environ is None else environ
    file_values, problems = _read_file(
        flags.get("config") or env.get("PDCORE_CONFIG"), section, settings, sections=SECTIONS
    )
    values: dict[str, object] = {}
    for setting in settings:
        raw = _first_given(setting, flags, env, file_values, defaults or {})
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
            help_text = f"{setting.help}{default} [{setting.variable}]"
            command = click.option(setting.flag, setting.name, metavar=setting.metavar, help=help_text)(
                command
            )
        file_help = f"TOML file with the same names; ./{CONFIG_FILE} if it is there. [PDCORE_CONFIG]"
        return click.option("--config", "config", metavar="FILE", help=file_help)(command)

    return decorate


def _first_given(
    setting: Setting,
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    file_values: Mapping[str, str],
    defaults: Mapping[str, str | None],
) -> str | None:
    given = flags.get(setting.name)
    if given is not None:
        return given
    if env.get(setting.variable):
        return env[setting.variable]
    if setting.name in file_values:
        return file_values[setting.name]
    return defaults.get(setting.name) or setting.default


def _read_file(
    given: str | None,
    section: str,
    settings: Sequence[Setting],
    *,
    sections: Mapping[str, Sequence[Setting]],
) -> tuple[dict[str, str], list[str]]:
    """Values for ``settings`` from the file ``given`` (else ``./pdcore.toml`` if there), and what is wrong in it.

    Keys outside any table hold for every process, those of ``[section]`` only for it. Every table of ``sections`` is
    checked, so that a typo in another process's table shows at once.
    """
    file = Path(given) if given else Path(CONFIG_FILE)
    if not given and not file.is_file():
        return {}, []
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else wrong
        return {}, [f"--config / PDCORE_CONFIG: cannot read {file}: {why}"]
    top = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    known = {
        table: {setting.name for setting in table_settings} for table, table_settings in sections.items()
    }
    everywhere = set().union(*known.values())
    problems = [
        f"{file}: unknown key {key!r}{_closest(key, everywhere)}" for key in top if key not in everywhere
    ]
    problems += [f"{file}: unknown table [{key}]" for key in tables if key not in known]
    for table, names in known.items():
        problems += [
            f"{file}: unknown key {key!r} in [{table}]{_closest(key, names)}"
            for key in tables.get(table, {})
            if key not in names
        ]
    wanted = {setting.name for setting in settings}
    merged = {**top, **tables.get(section, {})}
    return {key: _as_text(value) for key, value in merged.items() if key in wanted}, problems


def _closest(key: str, names: Iterable[str]) -> str:
    """A hint at the setting that ``key`` probably means; file keys are spelled with underscores."""
    found = difflib.get_close_matches(key.replace("-", "_"), sorted(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
