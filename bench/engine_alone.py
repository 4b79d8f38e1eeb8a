"""``tcp`` beside Mooncake's: ``python -m bench.engine_alone`` prints the figures as JSON.

Run on a machine that has nothing but loopback, because Mooncake listens on every interface; :func:`measure` makes one.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from bench.engine_writes import LISTS, REGION, ROUNDS, SEQ, TOKEN, best_of, linked, shuffled
from bench.figures import Figure
from bench.progress import step

_WANTED: Final[Mapping[str, float]] = {"1,024 x 4 KiB": 5.0, "512 x 64 KiB": 1.3}
_BUDGET_S: Final = 300.0
_ALONE: Final = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


def measure() -> list[Figure]:
    """Milliseconds of each list through both, alternately. Empty, with the reason told, where that cannot be."""
    if importlib.util.find_spec("mooncake") is None:
        step("no figures beside mooncake: the extra mooncake is not installed")
        return []
    if os.geteuid() != 0:
        step("no figures beside mooncake: a network namespace needs root")
        return []
    step("lists through tcp and mooncake, on a machine with nothing but loopback")
    command = [*_ALONE, sys.executable, "-m", "bench.engine_alone"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_BUDGET_S)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return [Figure(**figure) for figure in json.loads(ran.stdout.splitlines()[-1])]


def main() -> None:
    """See the module."""
    source = memoryview(mmap.mmap(-1, REGION))
    figures = []
    with linked("tcp", source) as tcp, linked("mooncake", source) as mooncake:
        for name, (count, length) in LISTS.items():
            ops = shuffled(count, length)
            writes = [partial(sender.write, TOKEN, ops, SEQ) for sender in (tcp, mooncake)]
            by_tcp, by_mooncake = best_of(ROUNDS, writes)
            figures.append(
                {
                    "name": f"tcp write, {name}",
                    "value": by_tcp * 1000,
                    "unit": "ms",
                    "beside": "mooncake",
                    "reference": by_mooncake * 1000,
                    "wanted": 1 / _WANTED[name] if name in _WANTED else None,
                }
            )
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
