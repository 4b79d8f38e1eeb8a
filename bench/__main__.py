"""Figures of this machine, each beside its limit or its alternative from the same run.

``python -m bench`` measures serving; ``python -m bench engine``, ``affinity``, ``models``, ``registry``, ``router`` and
``soak`` take flags (``--help``).
"""

from __future__ import annotations

import sys

from bench import engine, registry, serving, soak, transfer_bandwidth
from bench.affinity import comparison
from bench.progress import step
from bench.router import run as router


def main() -> int:
    subject, *arguments = sys.argv[1:] or ["serving"]
    match subject:
        case "serving":
            _serving()
            return 0
        case "affinity":
            return comparison.main(arguments)
        case "engine":
            return engine.main(arguments)
        case "models":
            from bench.models import run as models  # torch, and what it is compared with

            return models.main(arguments)
        case "registry":
            return registry.main(arguments)
        case "router":
            return router.main(arguments)
        case "soak":
            return soak.main(arguments)
        case _:
            print(
                f"bench: no such subject: {subject}; one of serving, affinity, engine, models, registry, router, soak",
                file=sys.stderr,
            )
            return 2


def _serving() -> None:
    step("KV write beside memmove (64 MiB, neighbouring and shuffled blocks)")
    for fragmented in (False, True):
        figures = transfer_bandwidth.measure(64, 15, fragmented=fragmented)
        blocks = "shuffled " if fragmented else "in a row "
        print(
            f"kv      {blocks} write {figures['write_gb_s']:6.2f} GB/s  memmove {figures['memmove_gb_s']:6.2f} GB/s"
            f"  ratio {figures['ratio']:.2f}"
        )
    step(f"hand-off and router on a tiny model ({serving.REQUESTS} requests each way)")
    serving.main()


if __name__ == "__main__":
    sys.exit(main())
