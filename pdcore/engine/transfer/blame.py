"""Who sent nonsense: every time is counted, the first time of a peer is logged."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pdcore.telemetry import Logger

_REMEMBERED_MOST: Final = 1024


class Blame:
    """``malformed`` counts. Peers are remembered up to a bound, the longest silent forgotten first."""

    def __init__(self, log: Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._known: OrderedDict[str, None] = OrderedDict()
        self.malformed = 0

    def __call__(self, peer: str, why: str) -> None:
        """``peer`` sent something for which ``why`` is the reason against."""
        self.malformed += 1
        if peer not in self._known:
            self._log.warning(self._what, peer=peer, error=why)
        self._known[peer] = None
        self._known.move_to_end(peer)
        while len(self._known) > _REMEMBERED_MOST:
            self._known.popitem(last=False)
