"""A supervisor in a process of its own: takes ports for so many members, says which, and holds them until told to end."""

from __future__ import annotations

import json
import sys

from pdcore.config.member_network import PortRange
from pdcore.group.ports.holding import HeldPorts
from pdcore.group.ports.layout import PortsExhausted
from pdcore.group.render.needs import PortNeed


def main(ports: str, members: int, width: int) -> None:
    """Waits for a line before it begins, so that several begin at once."""
    needs = (PortNeed(name="http", count=1), PortNeed(name="band", count=width))
    print("ready", flush=True)
    sys.stdin.readline()
    with HeldPorts(PortRange.parse(ports)) as held:
        taken: list[int] = []
        for member in range(members):
            try:
                bands = held.take(f"m{member}", needs)
            except PortsExhausted:
                break
            taken += [port for band in bands.values() for port in range(band.base, band.base + band.count)]
        print(json.dumps(taken), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
