"""What handshakes need of engines besides the legs: an answer to a question, or a call that an engine makes."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from pdcore.router.callbacks import Callback, Callbacks
from pdcore.router.learned import Learned
from pdcore.router.leg_failure import LegFailure
from pdcore.router.pick import NoPair, Pick
from pdcore.router.protocols.base import Attempt, Carried, Plan
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.protocols.unreadable import Unreadable
from pdcore.router.want import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacts:
    """Both ways, open for as long as the router runs."""

    learned: Learned
    callbacks: Callbacks

    async def plan(self, handshake: Handshake, attempt: Attempt) -> tuple[Plan, Callback | None]:
        """What ``handshake`` makes of ``attempt``, and the call that it expects, which is the caller's to close.

        Raises LegFailure when an engine does not say what must be known; nothing was executed then.
        """
        question = handshake.question(attempt.pick)
        if question is not None:
            attempt = replace(attempt, learned=await self.learned.answer(question))
        if handshake.calls_back:
            callback = self.callbacks.expect()
            return handshake.plan(replace(attempt, callback_url=callback.url)), callback
        try:
            return handshake.plan(attempt), None
        except Unreadable as wrong:
            raise LegFailure("prefill", "not_now", str(wrong)) from wrong

    def failed(self, chosen: Pick) -> None:
        """A request failed at ``chosen``: what was learned of its prefill is to be asked again."""
        if chosen.prefill is not None:
            self.learned.doubt(chosen.prefill.instance_id)


def takes_over(found: Pick | NoPair, carried: Carried) -> bool:
    """Whether ``found`` names the incarnation that holds the KV."""
    return isinstance(found, Pick) and found.prefill is not None and key_of(found.prefill) == carried.prefill
