"""Where the bands of a member go in a range of ports, and the arithmetic when they fit nowhere. Pure but for what it asks.

Every band is contiguous, because engines count up from its base. The widest goes first, each to the lowest place that
is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pdcore.config.member_network import PortRange
from pdcore.errors import PdcoreError
from pdcore.group.render.facts import PortBand
from pdcore.group.render.needs import PortNeed

Take = Callable[[int], bool]
"""Asks for one port: whether it is ours from now on."""
GiveBack = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """No place for ``band``. ``free`` ports were there in ``runs`` of neighbours, the longest of ``longest``."""

    range: PortRange
    wanted: tuple[tuple[str, int], ...]
    band: str
    width: int
    placed: int
    free: int
    runs: int
    longest: int

    def __str__(self) -> str:
        """The whole calculation, and what to do."""
        listed = " + ".join(f"{name} {count}" for name, count in self.wanted)
        total = sum(count for _, count in self.wanted)
        left = len(self.range) - self.free - self.placed
        there = f"of the {len(self.range)} ports in {self.range} {left} are taken by others"
        own = f", {self.placed} by this member's other bands" if self.placed else ""
        return (
            f"it needs {listed} = {total} ports; {there}{own} and {self.free} are free, {self._why()}; "
            "widen --service-port-range / network.service_port_range, or move members to another machine"
        )

    def _why(self) -> str:
        if self.longest == self.free or self.free < self.width:
            return f"fewer than the {self.width} of {self.band}"
        pieces = f"{self.runs} pieces, the longest of {self.longest}"
        return f"but in {pieces}, and {self.band} takes {self.width} in a row"


class PortsExhausted(PdcoreError):
    """A member's ports fit nowhere in the range. ``exhausted`` has the numbers."""

    def __init__(self, owner: str, exhausted: Exhausted) -> None:
        super().__init__(f"{owner}: {exhausted}")
        self.exhausted = exhausted


def place(
    ports: PortRange, needs: Sequence[PortNeed], take: Take, give_back: GiveBack
) -> Mapping[str, PortBand] | Exhausted:
    """A place for each of ``needs``, whose ports are then taken; on failure everything taken here is given back."""
    taken: dict[int, str] = {}
    refused: set[int] = set()
    found: dict[str, PortBand] = {}

    def is_ours(port: int) -> bool:
        if port in taken or port in refused:
            return False
        if take(port):
            return True
        refused.add(port)
        return False

    for need in sorted(needs, key=lambda one: -_width(one)):
        base = _first_fit(ports, _width(need), is_ours, give_back)
        if base is None:
            failed = _exhausted(ports, needs, need, taken, is_ours, give_back)
            for port in taken:
                give_back(port)
            return failed
        found[need.name] = PortBand(base=base, count=_width(need))
        taken.update(dict.fromkeys(range(base, base + _width(need)), need.name))
    return {need.name: found[need.name] for need in needs}


def _first_fit(ports: PortRange, width: int, is_ours: Take, give_back: GiveBack) -> int | None:
    """The lowest base of ``width`` ports in a row, which are then taken; None when there is no such place."""
    row: list[int] = []
    for port in ports.ports:
        if is_ours(port):
            row.append(port)
            if len(row) == width:
                return row[0]
        else:
            for held in row:
                give_back(held)
            row = []
    for held in row:
        give_back(held)
    return None


def _exhausted(
    ports: PortRange,
    needs: Sequence[PortNeed],
    failed: PortNeed,
    taken: Mapping[int, str],
    is_ours: Take,
    give_back: GiveBack,
) -> Exhausted:
    runs: list[int] = []
    before = -1
    for port in ports.ports:
        if not is_ours(port):
            continue
        give_back(port)
        if port == before + 1 and runs:
            runs[-1] += 1
        else:
            runs.append(1)
        before = port
    return Exhausted(
        range=ports,
        wanted=tuple((need.name, _width(need)) for need in needs),
        band=failed.name,
        width=_width(failed),
        placed=len(taken),
        free=sum(runs),
        runs=len(runs),
        longest=max(runs, default=0),
    )


def _width(need: PortNeed) -> int:
    assert need.count is not None, f"{need.name}: whoever asks for ports knows how many"
    return need.count
