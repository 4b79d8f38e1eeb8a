"""How every command prints and fails."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from pdcore.config.loading import environment
from pdcore.errors import AccessRefused, ConfigError, PdcoreError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

FAILED: Final = 1
MISCONFIGURED: Final = 2
PIPE_COLUMNS: Final = 160


def console() -> Console:
    """Standard output, as wide as :func:`columns` says."""
    from rich.console import Console  # a quarter of a second that only tables are worth

    return Console(width=columns())


def columns() -> int:
    """How wide a line may be: what COLUMNS says, else the terminal's width; a pipe is as wide as a table needs."""
    said = environment().get("COLUMNS", "")
    if said.isascii() and said.isdigit() and len(said) < 5 and int(said):
        return int(said)
    return shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns if sys.stdout.isatty() else PIPE_COLUMNS


@contextmanager
def failing_in_one_line(command: str) -> Iterator[None]:
    """What pdcore raises on purpose becomes one line per problem: exit 2 for what was given, 1 for what happened."""
    try:
        yield
    except ConfigError as wrong:
        for problem in wrong.problems:
            click.echo(f"{command}: {problem}", err=True)
        sys.exit(MISCONFIGURED)
    except PdcoreError as failed:
        click.echo(f"{command}: {failed}", err=True)
        sys.exit(FAILED)
    except BrokenPipeError:  # nobody reads our output any more
        sys.stdout = open(os.devnull, "w")
        sys.exit(FAILED)


@contextmanager
def reading_store(url: str) -> Iterator[None]:
    """Trouble with the store says which one it was and how to name another."""
    try:
        yield
    except AccessRefused as refused:
        raise ConfigError(f"the store at {url} does not let us in: {refused}") from refused
    except StoreError as error:
        raise StoreError(
            f"cannot read the store at {url}: {error}. Is it running? --store / PDCORE_STORE names another one."
        ) from error
