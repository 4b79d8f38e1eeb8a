"""Instances and a load for policies to choose by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdcore.router.policies.base import Choice, Policy, choose
from pdcore.router.want import Want
from pdcore.topology.instance import Instance
from pdcore.topology.records import Role
from tests.router.fleet import MODEL, record

WANT = Want(model=MODEL)


def instance(instance_id: str, role: Role = "prefill", **changes: Any) -> Instance:
    """One that is complete enough to be chosen."""
    made = record(role, "http://127.0.0.1:1", **changes)
    return Instance(instance_id=instance_id, record=made, mod_revision=1, ranks={}, uncounted={}, order=None)


def instances(count: int, role: Role = "prefill", **changes: Any) -> Sequence[Instance]:
    """``count`` of them, in order of their ids."""
    return [instance(f"{role}-{number:03}", role, **changes) for number in range(count)]


@dataclass
class FixedLoad:
    """A load that only changes when a test says so."""

    legs: Mapping[str, int] = field(default_factory=dict)
    uses: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def in_flight(self, instance_id: str) -> int:
        return self.legs.get(instance_id, 0)

    def last_use(self, *instance_ids: str) -> int:
        return self.uses.get(instance_ids, 0)


def chosen(policy: Policy, candidates: Sequence[Instance], want: Want = WANT, **legs: int) -> str:
    """Whom ``policy`` takes while ``legs`` are in flight, dashes of ids written as underscores."""
    load = FixedLoad({name.replace("_", "-"): count for name, count in legs.items()})
    return choice(policy, candidates, want, load).instance.instance_id


def choice(
    policy: Policy, candidates: Sequence[Instance], want: Want = WANT, load: FixedLoad | None = None
) -> Choice:
    """How ``policy`` chooses."""
    return choose(policy, candidates, want, load or FixedLoad())
