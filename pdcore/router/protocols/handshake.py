"""What a handshake protocol is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from pdcore.router.api import ClientRequest
from pdcore.router.pick import Pick
from pdcore.router.protocols.base import Attempt, Plan, Question


class Handshake(Protocol):
    """One protocol. Pure."""

    calls_back: ClassVar[bool] = False
    """Whether an engine speaks to the router before it answers: then an attempt has a ``callback_url``."""

    def check(self, request: ClientRequest) -> None:
        """Raise the 400 for what engines of this protocol cannot do."""
        return None

    def question(self, pick: Pick) -> Question | None:
        """What to ask before planning, if anything."""
        return None

    def plan(self, attempt: Attempt) -> Plan:
        """The legs of ``attempt``."""
        ...
