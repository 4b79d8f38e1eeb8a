"""One instance that computes both phases: one leg, no handshake."""

from __future__ import annotations

from pdcore.router.protocols.base import Attempt, LegPlan, Plan, post
from pdcore.router.protocols.handshake import Handshake


class Unified(Handshake):
    """The only leg is the answering one; the instance's incarnation is named as decode's."""

    def plan(self, attempt: Attempt) -> Plan:
        """One leg."""
        one = attempt.pick.decode
        headers = {"x-pdcore-decode-incarnation": one.record.incarnation}
        leg = LegPlan(leg="decode", instance=one, post=post(attempt, one, {}, headers))
        return Plan(legs=(leg,), room=attempt.room)
