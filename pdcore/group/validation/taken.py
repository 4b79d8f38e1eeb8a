"""Whether a program of pdcore's own would take a flag that it is given. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pdcore.config.setting import Setting
from pdcore.config.spelling import closest
from pdcore.group.finding import Finding
from pdcore.group.flags import Flag

Program = Literal["engine", "router"]


def unknown(
    program: Program, flag: Flag, names: Iterable[str], *, code: str, path: str, **about: Any
) -> Finding:
    """There is no such flag; the closest of ``names`` is told. ``about`` stands in the finding's values."""
    return Finding(
        code=code,
        path=path,
        message=f"the {program} has no flag --{flag.name}{closest(flag.name, names)}",
        remedy=f"see python -m pdcore.{program} --help",
        values={**about, "flag": f"--{flag.name}"},
    )


def refused(
    program: Program, flag: Flag, setting: Setting, *, code: str, path: str, **about: Any
) -> Iterator[Finding]:
    """``setting`` does not take the flag's value; nothing where it does."""
    try:
        setting.parse(flag.value or "")
    except ValueError as wrong:
        yield Finding(
            code=code,
            path=path,
            message=f"--{flag.name}: {wrong}",
            remedy=f"write a value that the {program} takes",
            values={**about, "flag": f"--{flag.name}", "given": flag.value},
        )


def refused_variables(
    program: Program, env: Mapping[str, str], settings: Sequence[Setting], *, path: str, role: str
) -> Iterator[Finding]:
    """What ``program`` would not take of the variables that it reads; an empty one is as good as none."""
    by_variable = {variable: setting for setting in settings for variable in setting.variables}
    for variable, value in env.items():
        setting = by_variable.get(variable)
        if setting is None or not value:
            continue
        try:
            setting.parse(value)
        except ValueError as wrong:
            yield Finding(
                code="variable_refused",
                path=f"{path}.{variable}",
                message="the value cannot be used" if setting.secret else str(wrong),
                remedy=f"write a value that the {program} takes",
                values={"role": role, "variable": variable, "given": None if setting.secret else value},
            )
