"""Who moves when one of the instances is replaced: conversations under way, each asked for its home before and after.

A conversation has moved when its KV is not where its next turn goes: it lived at the instance that went, or it has
another home afterwards, or it had one meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.affinity.routers import FLEET, IDLE
from bench.affinity.workloads import Request
from pdcore.router.policies.base import choose
from pdcore.router.policies.prefix_affinity import PrefixAffinity
from pdcore.router.policies.shared_prefixes import SharedPrefixes
from pdcore.router.want import Prefix, Want
from pdcore.topology.instance import Instance
from pdcore.topology.records import SEAT

CONVERSATIONS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The share of conversations that move, the mean over all instances that may be the one.

    ``inherited``: whoever comes in its place has another id and its seat. ``same_id``: there are no seats, and who comes has
    its instance id. 1 in 8 is the least there can be.
    ``other_id``: there are no seats, and somebody else comes. Then a rule that knows nothing but ids, and gives everybody an
    equal share, has to move 1 in 6 on average: going from {a, b} to {c, b}, {c, a} and back to {b, a} would swap a and b
    otherwise.
    """

    inherited: float
    same_id: float
    other_id: float


def moved(requests: Sequence[Request]) -> Moved:
    """What replacing an instance does to the conversations that were asked last in ``requests``."""
    memory = SharedPrefixes()
    for request in requests:
        memory.see(request.prompt(), request.at)
    latest = {request.conversation: request for request in requests}
    under_way = sorted(latest.values(), key=lambda request: request.at)[-CONVERSATIONS:]
    prefixes = [memory.see(request.prompt(), requests[-1].at) for request in under_way]
    seats = [_with_seat(one, number) for number, one in enumerate(FLEET)]
    return Moved(
        inherited=_moved(prefixes, seats, "-new"),
        same_id=_moved(prefixes, FLEET, ""),
        other_id=_moved(prefixes, FLEET, "-new"),
    )


def _with_seat(one: Instance, seat: int) -> Instance:
    return replace(one, record=one.record._replace(extra={SEAT: seat}))


def _moved(prefixes: Sequence[Prefix], fleet: Sequence[Instance], suffix: str) -> float:
    """The share that moves when one of ``fleet`` goes and comes back with ``suffix`` at its id, whichever one it is."""
    before, count = _homes(prefixes, fleet), 0
    for gone in fleet:
        left = [one for one in fleet if one is not gone]
        new = replace(gone, instance_id=f"{gone.instance_id}{suffix}")
        meanwhile = _homes(prefixes, left)
        after = _homes(prefixes, sorted([*left, new], key=lambda one: one.instance_id))
        count += sum(
            not home == away == then for home, away, then in zip(before, meanwhile, after, strict=True)
        )
    return count / (len(prefixes) * len(fleet))


def _homes(prefixes: Sequence[Prefix], fleet: Sequence[Instance]) -> list[str]:
    """Where each conversation goes while nothing is in flight."""
    policy = PrefixAffinity()
    wants = (Want(model="m", prefix=prefix) for prefix in prefixes)
    return [choose(policy, fleet, want, IDLE).instance.instance_id for want in wants]
