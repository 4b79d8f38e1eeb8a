"""The receiving half of a KV write benchmark, a process of its own: ``python -m bench.engine_receiver ENGINE NBYTES``.

It reads one line with the sender's endpoint, lets everything in, says ``linked`` and ends when its input does.
"""

from __future__ import annotations

import json
import select
import sys

from bench.engine_writes import SEQ, TOKEN, engine_named
from pdcore.engine.transfer.memory import Region


def main() -> None:
    """See the module."""
    engine, nbytes = engine_named(sys.argv[1]), int(sys.argv[2])
    endpoint = json.loads(sys.stdin.readline())
    with Region(nbytes) as region:
        region.memory[:] = bytes(nbytes)  # every page is there before the first write
        with engine.receiver(region) as receiver:
            receiver.connect(endpoint, TOKEN)
            receiver.allow(TOKEN, SEQ)
            print("linked", flush=True)
            while True:
                readable, _, _ = select.select([sys.stdin, *receiver.pollables()], [], [], 1.0)
                if sys.stdin in readable:
                    return
                receiver.drain()


if __name__ == "__main__":
    main()
