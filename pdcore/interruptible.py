"""Commands that Ctrl-C ends without a word."""

from __future__ import annotations

from typing import Any

import click

from pdcore.starting import INTERRUPTED


class Interruptible(click.Command):
    """click itself says "Aborted!" and ends with 1, which looks like a failure."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
