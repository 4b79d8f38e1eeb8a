"""What the ends of an engine need of a library that moves bytes by addresses: Mooncake's, MemFabric's.

Return codes are none of theirs: whatever is no success is False, or a ``ConfigError`` while an instance starts.
"""

from __future__ import annotations

from typing import Protocol


class MovesBytes(Protocol):
    """One library in one process. ``timeout_s``: after so long without an answer a write is given up, in doubt."""

    @property
    def timeout_s(self) -> float: ...

    def open(self) -> None:
        """Load and initialize; ``ConfigError`` when that fails."""
        ...

    def close(self) -> None:
        """Forget all memory and end, also when ``open`` failed half-way."""
        ...

    @property
    def session(self) -> str:
        """How peers call us; known once it is open."""
        ...

    def register(self, address: int, nbytes: int) -> None:
        """Let the library read and write there; ``ConfigError`` when it will not."""
        ...

    def write(self, session: str, sources: list[int], targets: list[int], lengths: list[int]) -> bool:
        """Copy every row and wait; False when the library reports a failure, after which bytes may still land."""
        ...
