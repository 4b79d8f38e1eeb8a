"""How a command begins: Ctrl-C is quiet from the first moment, while modules still load."""

import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit status of what Ctrl-C ended, as shells have it."""


def start(command: str, **settings: object) -> None:
    """Load ``module:attribute``, a click command, and run it; never returns normally."""
    try:
        from importlib import import_module

        module, _, attribute = command.partition(":")
        getattr(import_module(module), attribute)(**settings)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
