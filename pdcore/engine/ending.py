"""Why a parent process ends, and with which exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pdcore.errors import ConfigError
from pdcore.topology.records import DepartureReason

OK: Final = 0
REFUSED: Final = 2
SUPERSEDED: Final = 3
RANK_DIED: Final = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why the process ends, with which status, and what its departure record says (None: nothing).

    ``drains``: first refuse new requests and let those in flight finish. ``refused`` is what a person still has to be told; a rank that refuses to start has told them itself.
    """

    status: int
    why: str
    departure: DepartureReason | None = "left"
    drains: bool = False
    refused: ConfigError | None = None


TERMINATED: Final = Ending(status=OK, why="the process was told to end", drains=True)
