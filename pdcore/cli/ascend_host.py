"""This machine and its torch, for ``pdcore doctor ascend``: also where no engine can be installed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pdcore.engine.doctor.ascend import PROGRAMS
from pdcore.engine.doctor.host import ThisHost
from pdcore.engine.rank_process import PLUG_INS_WAIT


def this_host(environ: Mapping[str, str]) -> ThisHost:
    """The machine this command runs on."""
    return ThisHost(environ=environ, also=PROGRAMS)


def why_no_device() -> str | None:
    """What keeps an engine from computing on the first device; torch may be missing, or broken by its plug-in."""
    os.environ.update(PLUG_INS_WAIT)
    try:
        from pdcore.engine.device import why_no_npu
    except (ImportError, RuntimeError, OSError) as wrong:
        return f"torch cannot be imported: {wrong}"
    return why_no_npu()
