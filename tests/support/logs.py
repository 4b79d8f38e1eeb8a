"""What is configured for a whole process, taken back after a test that ran a main in its own."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

_Proxy: Final = type(structlog.get_logger())


def forget_configuration() -> None:
    """Log as if nobody had configured it: loggers that remember where they wrote forget that too."""
    if not structlog.is_configured():
        return
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.getLogger().handlers.clear()
    ours = (module for name, module in sys.modules.items() if name.partition(".")[0] in {"pdcore", "bench"})
    for module in tuple(ours):
        for held in vars(module).values():
            if isinstance(held, _Proxy):
                vars(held).pop("bind", None)
