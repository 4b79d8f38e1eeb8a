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
MISCONFIGURED: Final = 2
"""As every program of ours ends that was given what cannot work."""


def main(parent: int, argv: list[str]) -> None:
    """Never returns: the process becomes ``argv``, or exits: ``parent`` is gone already, or there is no such program."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        print(f"{argv[0]}: command not found", file=sys.stderr)
    except OSError as wrong:
        print(f"{argv[0]}: cannot be executed: {wrong.strerror}", file=sys.stderr)
    sys.exit(MISCONFIGURED)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
