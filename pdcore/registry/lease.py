"""One lease held for as long as its holder lives, and how long to wait after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pdcore.clock import Clock
from pdcore.errors import LeaseGone
from pdcore.registry.store import LeaseId, Store

FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 1.0
Jitter = Callable[[], float]
"""Returns a number within [0, 1), like ``random.random``."""


def retry_after_s(failures: int, jitter: float) -> float:
    """How long to wait after ``failures`` ≥ 1 failures in a row: doubling, bounded, spread by half."""
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
    return longest * (0.5 + jitter / 2)


class HeldLease:
    """A lease renewed at a third of its TTL.

    ``id`` is None until granted and after it was lost; ``due`` is when to renew and ``expires`` when it ends
    unless that succeeds, both on the caller's monotonic clock and counted from before the call was sent, so that
    it never seems to live longer than it does.
    """

    def __init__(self, store: Store, ttl_s: int, *, clock: Clock, jitter: Jitter) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._jitter = jitter
        self.id: LeaseId | None = None
        self.due = float("inf")
        self.expires = float("-inf")

    async def ensure(self) -> LeaseId:
        """The lease, granted now if there is none. Raises StoreError."""
        if self.id is None:
            sent = self._clock.now()
            self._hold(await self._store.grant(self._ttl_s), sent, float(self._ttl_s))
        assert self.id is not None
        return self.id

    async def renew(self) -> bool:
        """Keep it alive; False when it is gone, and its keys with it. Raises StoreError when nobody can tell."""
        if self.id is None:
            return False
        sent = self._clock.now()
        try:
            left_s = await self._store.keep_alive(self.id)
        except LeaseGone:
            self.forget()
            return False
        self._hold(self.id, sent, left_s)
        return True

    def is_due(self, now: float) -> bool:
        """Whether it is time to renew."""
        return self.id is not None and now >= self.due

    def adopt(self, lease: LeaseId) -> None:
        """Go on with a lease somebody else granted; to be renewed at once."""
        self.id, self.due = lease, self._clock.now()

    def forget(self) -> None:
        """It is gone: the next :meth:`ensure` grants another."""
        self.id, self.due, self.expires = None, float("inf"), float("-inf")

    def _hold(self, lease: LeaseId, sent: float, left_s: float) -> None:
        self.id = lease
        self.due = sent + left_s / 3 * (0.9 + self._jitter() / 10)
        self.expires = sent + left_s
