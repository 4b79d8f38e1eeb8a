"""Become another program that ends when this process's parent does: ``tether.py PARENT_PID PROGRAM ARGUMENT…``.

Run as a file, with the standard library only, between fork and the real program: the kernel then sends SIGTERM to the
program when its supervisor is gone, even by ``kill -9``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def main(parent: int, argv: list[str]) -> None:
    """Never returns: the process becomes ``argv``, or exits because ``parent`` is gone already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
