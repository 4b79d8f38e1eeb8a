"""What a handshake raises that cannot go on by what an engine said."""

from __future__ import annotations

from pdcore.errors import PdcoreError


class Unreadable(PdcoreError):
    """What an engine said is not what its protocol needs to go on."""
