"""Print the settings of every process as the Markdown tables of README.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pdcore.config import COMMON, ENGINE, FACADE, LISTEN, ROUTER, UP
from pdcore.config.operator import OPERATOR
from pdcore.config.setting import Setting

TABLES: Final = (
    ("Every process", COMMON),
    ("Engines and routers", LISTEN),
    ("Engine", [setting for setting in ENGINE if setting not in (*COMMON, *LISTEN)]),
    ("Router", [setting for setting in ROUTER if setting not in (*COMMON, *LISTEN)]),
    ("Foreign prefill engine", [setting for setting in FACADE if setting not in COMMON]),
    ("`pdcore topology`, `pdcore topology wait`", [setting for setting in OPERATOR if setting not in COMMON]),
    ("`pdcore up`, `pdcore demo`", [setting for setting in UP if setting not in COMMON]),
)


def main() -> None:
    print(tables())


def tables() -> str:
    """One table per process."""
    return "\n\n".join(f"**{title}**\n\n{_table(settings)}" for title, settings in TABLES)


def _table(settings: Iterable[Setting]) -> str:
    head = ("| flag | variable | default | meaning |", "| --- | --- | --- | --- |")
    return "\n".join((*head, *map(_row, settings)))


def _row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{setting.default}`"
    flags = "" if setting.secret else _named(setting.flags)
    return f"| {flags} | {_named(setting.variables)} | {default} | {setting.help} |"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    main()
