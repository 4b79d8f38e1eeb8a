"""What a forward pass tells of itself while it is under way, on the thread that runs it.

A device is behind what is told here: it was given that work, and has not done it.
"""

from __future__ import annotations

from typing import Final, Protocol


class Progress(Protocol):
    """Hears each of these once per pass, in this order."""

    def stored(self) -> None:
        """Keys and values of the whole batch are in the pool; the last layer has yet to attend to them."""
        ...

    def layers_done(self) -> None:
        """What is left is to choose tokens."""
        ...


class NobodyAsks:
    """Progress that is of no use to anybody."""

    def stored(self) -> None: ...

    def layers_done(self) -> None: ...


NOBODY_ASKS: Final = NobodyAsks()
