"""One line on standard error before whatever takes more than two seconds, so that figures stay alone on the other."""

from __future__ import annotations

import sys


def step(what: str) -> None:
    """Say what is measured next."""
    print(f"… {what}", file=sys.stderr, flush=True)
