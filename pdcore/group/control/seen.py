"""What a controller or a supervisor of one group looks at before it decides: one value, read from store and view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdcore.group.control.generation import Generation
from pdcore.group.control.members import Member
from pdcore.group.control.plan import Plan
from pdcore.group.control.slots import Slot
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One group as it stands. ``revision`` is the one that wrote ``plan``, ``now`` seconds since 1970."""

    group: str
    plan: Plan
    revision: int
    generations: Mapping[int, Generation]
    slots: Mapping[Member, Slot]
    topology: Topology
    now: float

    def instance(self, member: Member) -> Instance | None:
        """The instance of a prefill or decode member, if it is registered."""
        return self.topology.instances.get(member.name_in(self.group))

    def is_there(self, member: Member) -> bool:
        """Whether anything of ``member`` is left: its slot, or what it registered."""
        if member in self.slots:
            return True
        if member.role == "router":
            return member.name_in(self.group) in self.topology.routers
        return self.instance(member) is not None
