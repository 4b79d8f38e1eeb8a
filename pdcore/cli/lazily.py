"""Groups of commands whose modules are loaded when they are needed: a quick command does not pay for a slow one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from pdcore.interruptible import Interruptible


class LazyGroup(Interruptible, click.Group):
    """A group that knows its commands by ``module:attribute``, in the order in which they are shown."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        return self.loaded(cmd_name)

    def loaded(self, name: str) -> click.Command:
        """The command of that name; KeyError for one that was not named."""
        module, _, attribute = self.lazy[name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, click.Command)
        return found
