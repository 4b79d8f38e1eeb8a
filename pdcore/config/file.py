"""What the file of ``--config`` says, whichever kind it is.

A directory is a recipe's (``prefill.yaml`` and ``decode.yaml``, of which the role picks one), a file that ends in
``.yaml`` or ``.yml`` is one of its files, and everything else is TOML with our own names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdcore.config import recipe
from pdcore.config.setting import Setting
from pdcore.config.spelling import closest
from pdcore.errors import ConfigError

CONFIG_FILE: Final = "pdcore.toml"
NAMED: Final = "--config / PDCORE_CONFIG"
YAML: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValues:
    """Texts by setting, the known keys that nothing uses, and what is wrong: whole sentences."""

    values: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_file(
    given: str | None, section: str, role: str | None, sections: Mapping[str, Sequence[Setting]]
) -> FileValues:
    """What ``given``, else ``./pdcore.toml`` if it is there, says for the process whose table is ``section``."""
    file = Path(given) if given else Path(CONFIG_FILE)
    if not given and not file.is_file():
        return FileValues()
    if not file.is_dir() and file.suffix not in YAML:
        return _read_toml(file, section, sections)
    if section != "engine":
        return FileValues(problems=(f"{NAMED}: {file} is for engines; {section} takes TOML",))
    if role is None:
        return FileValues()  # its absence is a problem of its own
    try:
        read = _read_directory(file, role) if file.is_dir() else _read_recipe(file, role)
    except ConfigError as wrong:
        return FileValues(problems=wrong.problems)
    return FileValues(values=read.values, ignored=read.ignored)


def _read_directory(directory: Path, role: str) -> recipe.RecipeSettings:
    """The role's file. The other one is read too where it is there: a typo in it shows at once."""
    files = {name: directory / file for name, file in recipe.ROLE_FILES.items()}
    if role not in files:
        raise ConfigError(f"{NAMED}: {directory} has a file for prefill and for decode, none for {role}")
    read = {name: _read_recipe(file, name) for name, file in files.items() if name == role or file.is_file()}
    if len(read) == len(files):
        recipe.check_pair(str(directory), read["prefill"], read["decode"])
    return read[role]


def _read_recipe(file: Path, role: str) -> recipe.RecipeSettings:
    from pdcore.config.yaml_file import read_yaml  # only who reads YAML pays for its parser

    return recipe.read_settings(read_yaml(file), str(file), role)


def _read_toml(file: Path, section: str, sections: Mapping[str, Sequence[Setting]]) -> FileValues:
    """Keys outside any table hold for every process, those of ``[section]`` only for it.

    Every table of ``sections`` is checked, so that a typo in another process's table shows at once.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else wrong
        return FileValues(problems=(f"{NAMED}: cannot read {file}: {why}",))
    top = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    known = {table: {setting.name for setting in settings} for table, settings in sections.items()}
    everywhere = set().union(*known.values())
    problems = [
        f"{file}: unknown key {key!r}{closest(key, everywhere)}" for key in top if key not in everywhere
    ]
    problems += [f"{file}: unknown table [{key}]" for key in tables if key not in known]
    for table, names in known.items():
        problems += [
            f"{file}: unknown key {key!r} in [{table}]{closest(key, names)}"
            for key in tables.get(table, {})
            if key not in names
        ]
    merged = {**top, **tables.get(section, {})}
    wanted = known.get(section, everywhere)  # a command has no table of its own
    values = {key: _as_text(value) for key, value in merged.items() if key in wanted}
    return FileValues(values=values, problems=tuple(problems))


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
