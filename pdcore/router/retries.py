"""What to pick after an attempt that failed, or that nothing is to be tried again.

What cannot have been executed is tried again. Beyond that a request has one second chance: when its instance took it
along as it died, or when decode failed with it and the KV still waits at prefill, for another decode. A 421 is free,
since it names a view that is old and nothing else; every other retry is paid from the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from pdcore.registry.overlay.fleet import Fleet
from pdcore.router.dispatch import Verdict
from pdcore.router.exchange import Effect
from pdcore.router.leg_failure import LegFailure
from pdcore.router.pick import InstanceKey, NoPair, Pick, Want
from pdcore.router.want import key_of
from pdcore.router.witness import Witness

FRESH_VIEW_S: Final = 0.5  # how long a 421 waits for the view to show what the engine knows already


@dataclass(slots=True, kw_only=True)
class Retries:
    """One request's. ``counted`` is told the effect behind each retry. ``spent``: it has had its second chance; the only
    field that changes."""

    fleet: Fleet
    witness: Witness
    pick: Callable[[Want], Pick | NoPair]
    now: Callable[[], float]
    counted: Callable[[Effect], None]
    spent: bool = False

    async def next(self, want: Want, chosen: Pick, verdict: Verdict) -> Want | None:
        """What to pick next; None when the failure is the answer."""
        failure = verdict.failure
        assert failure is not None
        if verdict.effect == "retry_fresh":
            self.counted(verdict.effect)
            return await self._fresher(want, chosen, failure)
        if verdict.effect == "retry_elsewhere":
            again = without(want, chosen, failure.blamed, f"did not take this request: {failure.message}")
            return self._paid(again, verdict.effect)
        if verdict.effect == "retry_if_died" and not self.spent:
            return await self._second_chance(want, chosen, verdict, failure)
        return None

    async def _second_chance(
        self, want: Want, chosen: Pick, verdict: Verdict, failure: LegFailure
    ) -> Want | None:
        self.spent = True
        if verdict.left is not None and failure.leg == "decode":
            again = without(want, chosen, "decode", f"failed with this request: {failure.message}")
            return self._paid(again, verdict.effect)
        leg = failure.maybe_died
        if leg is None:
            return None
        if not await self.witness.has_died(key_of(chosen.at(leg))):
            return None
        return self._paid(without(want, chosen, leg, "died while it held this request"), verdict.effect)

    def _paid(self, again: Want, effect: Effect) -> Want | None:
        if not self.witness.retries.take(self.now()):
            return None
        self.counted(effect)
        return again

    async def _fresher(self, want: Want, chosen: Pick, failure: LegFailure) -> Want:
        """After a 421: the same on a view that has moved, or elsewhere when it does not."""
        if not self._would_repeat(want, chosen):
            return want
        try:
            await self.fleet.wait_until(lambda view: view.revision > chosen.revision, FRESH_VIEW_S)
        except TimeoutError:
            pass  # the view knows nothing newer: look elsewhere
        if not self._would_repeat(want, chosen):
            return want
        elsewhere = without(want, chosen, failure.blamed, f"did not take this request: {failure.message}")
        return want if isinstance(self.pick(elsewhere), NoPair) else elsewhere

    def _would_repeat(self, want: Want, chosen: Pick) -> bool:
        again = self.pick(want)
        return isinstance(again, Pick) and _keys(again) == _keys(chosen)


def without(want: Want, chosen: Pick, leg: str, why: str) -> Want:
    """``want`` that excludes the instance of ``leg`` for ``why``."""
    return replace(want, excluded={**want.excluded, key_of(chosen.at(leg)): why})


def _keys(chosen: Pick) -> list[InstanceKey]:
    return [key_of(one) for one in chosen.instances]
