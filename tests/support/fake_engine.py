"""A real leader with a fake rank: ``python -m tests.support.fake_engine`` takes the flags of ``pdcore.engine``."""

from __future__ import annotations

import sys

import click

from pdcore.config import ENGINE, options
from pdcore.engine.command import serve

FAKE_RANK = (sys.executable, "-m", "tests.support.fake_rank")


@click.command()
@options(ENGINE)
def main(**flags: str | None) -> None:
    """Run until told to end."""
    sys.exit(serve(flags, FAKE_RANK))


if __name__ == "__main__":
    main()
