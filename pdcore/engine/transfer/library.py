"""What the ends of an engine need of a library that moves bytes by addresses: Mooncake's, MemFabric's.

Return codes are none of theirs: whatever is no success is False, or a ``ConfigError`` while an instance starts.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from pdcore.errors import ConfigError


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


class ByAddress(Protocol):
    """What both libraries call alike. Addresses are those of this process, or the peer's."""

    def register_memory(self, address: int, nbytes: int, /) -> int: ...

    def unregister_memory(self, address: int, /) -> int: ...

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int], /
    ) -> int: ...


LibraryT = TypeVar("LibraryT", bound=ByAddress)


class Opened(Generic[LibraryT]):
    """A library from when it is ``adopted`` until it is ``given_up``, and what is registered with it.

    Mutable: ``_registered`` (addresses, under ``_lock``), ``_library`` (None unless open).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._registered: list[int] = []
        self._lock = threading.Lock()
        self._library: LibraryT | None = None

    def adopted(self, library: LibraryT) -> None:
        """From now on ``library`` is used."""
        self._library = library

    def given_up(self) -> LibraryT | None:
        """Forget all memory; the library, whose last reference this is, None when it was not open."""
        library, self._library = self._library, None
        if library is not None:
            for address in self._registered:
                library.unregister_memory(address)
        return library

    def register(self, address: int, nbytes: int) -> None:
        """Let the library read and write there; ``ConfigError`` when it will not."""
        status = self.opened.register_memory(address, nbytes)
        if status != 0:
            raise ConfigError(f"{self._name} cannot register {nbytes} bytes of memory: it answered {status}")
        with self._lock:
            self._registered.append(address)

    def write(self, session: str, sources: list[int], targets: list[int], lengths: list[int]) -> bool:
        """Copy every row and wait; False when the library reports a failure, after which bytes may still land."""
        return self.opened.batch_transfer_sync_write(session, sources, targets, lengths) == 0

    @property
    def opened(self) -> LibraryT:
        """The library; RuntimeError unless it is open."""
        if self._library is None:
            raise RuntimeError("the engine is not open")
        return self._library
