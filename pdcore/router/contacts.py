"""What handshakes need of engines besides the legs: an answer to a question, or a call that an engine makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from pdcore.config import RouterConfig
from pdcore.http_server import listen
from pdcore.router.callbacks import Callback, Callbacks, listening
from pdcore.router.exchange import LegFailure
from pdcore.router.learned import Learned
from pdcore.router.pick import NoPair, Pick
from pdcore.router.protocols.base import Attempt, Carried, Handshake, Plan, Unreadable
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


@asynccontextmanager
async def contacts(config: RouterConfig) -> AsyncIterator[Contacts]:
    """Open them: a client, and a listener on ``config.metaserver_port``. Raises ConfigError when that is taken."""
    with listen(config.host, config.metaserver_port, "metaserver_port") as listener:
        async with (
            Learned(timeout_s=config.connect_timeout_s) as learned,
            listening(config.host, listener) as callbacks,
        ):
            yield Contacts(learned=learned, callbacks=callbacks)


def takes_over(found: Pick | NoPair, carried: Carried) -> bool:
    """Whether ``found`` names the incarnation that holds the KV."""
    return isinstance(found, Pick) and found.prefill is not None and key_of(found.prefill) == carried.prefill
