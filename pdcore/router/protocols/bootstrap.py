"""Native and SGLang: both legs at once, joined by a room; decode finds prefill through its bootstrap address."""

from __future__ import annotations

from pdcore.router.protocols.base import Attempt, LegPlan, Plan, post, url_of
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.upstream import Post


class Bootstrap(Handshake):
    """Both legs carry the same body and the same headers; each engine checks the incarnations it is named by.

    A request of several prompts or samples has a room for each, in lists of equal length; one has plain values.
    """

    def plan(self, attempt: Attempt) -> Plan:
        """One leg for prefill, one for decode."""
        prefill, decode = attempt.pick.prefill, attempt.pick.decode
        assert prefill is not None, "a bootstrap handshake needs a pair"
        rooms = attempt.rooms
        fields: dict[str, object] = {
            "bootstrap_room": rooms[0] if len(rooms) == 1 else rooms,
            "bootstrap_host": _each(prefill.record.bootstrap_host, rooms),
            "bootstrap_port": _each(prefill.record.bootstrap_port, rooms),
        }
        if attempt.pick.prefill_dp_rank is not None:
            fields["disagg_prefill_dp_rank"] = attempt.pick.prefill_dp_rank
        headers = {
            "x-pdcore-prefill-incarnation": prefill.record.incarnation,
            "x-pdcore-decode-incarnation": decode.record.incarnation,
        }
        to_prefill = post(attempt, prefill, fields, headers)
        to_decode = Post(url=url_of(attempt, decode), headers=to_prefill.headers, body=to_prefill.body)
        return Plan(
            legs=(
                LegPlan(leg="prefill", instance=prefill, post=to_prefill),
                LegPlan(leg="decode", instance=decode, post=to_decode),
            ),
            room=attempt.room,
        )


def _each(value: object, rooms: tuple[int, ...]) -> object:
    return value if len(rooms) == 1 else [value] * len(rooms)
