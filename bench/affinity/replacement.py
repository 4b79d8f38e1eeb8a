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

CONVERSATIONS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The share of conversations that move, the mean over all instances that may be the one.

    ``same_id``: whoever comes in its place, wherever, has its instance id; 1 in 8 is the least there can be.
    ``other_id``: somebody else comes instead. Then a rule that knows nothing but ids, and gives everybody an equal share,
    has to move 1 in 6 on average: going from {a, b} to {c, b}, {c, a} and back to {b, a} would swap a and b otherwise.
    """

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
    before = _homes(prefixes, FLEET)
    same, other = 0, 0
    for gone in FLEET:
        left = [one for one in FLEET if one is not gone]
        new = replace(gone, instance_id=f"{gone.instance_id}-new")
        meanwhile = _homes(prefixes, left)
        after = _homes(prefixes, sorted([*left, new], key=lambda one: one.instance_id))
        same += sum(home != away for home, away in zip(before, meanwhile, strict=True))
        other += sum(home != then for home, then in zip(before, after, strict=True))
    asked = len(prefixes) * len(FLEET)
    return Moved(same_id=same / asked, other_id=other / asked)


def _homes(prefixes: Sequence[Prefix], fleet: Sequence[Instance]) -> list[str]:
    """Where each conversation goes while nothing is in flight."""
    policy = PrefixAffinity()
    wants = (Want(model="m", prefix=prefix) for prefix in prefixes)
    return [choose(policy, fleet, want, IDLE).instance.instance_id for want in wants]
