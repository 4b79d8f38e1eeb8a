"""A member of a group by name: which generation, which role, which number. Pure.

Prefill and decode belong to a generation. Routers serve every generation of their group and so are of generation 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

MemberRole = Literal["prefill", "decode", "router"]
ROLES: Final[tuple[MemberRole, ...]] = get_args(MemberRole)
ENGINE_ROLES: Final[tuple[MemberRole, ...]] = ("prefill", "decode")
ROUTERS: Final = 0
"""The generation of routers."""
_PATH: Final = re.compile(r"([0-9]{1,9})/(prefill|decode|router)/([1-9][0-9]{0,4})")


class Member(NamedTuple):
    """One process that a group wants. ``number`` counts from 1 and may have gaps."""

    generation: int
    role: MemberRole
    number: int

    @property
    def path(self) -> str:
        """As keys and records spell it: ``2/prefill/1``."""
        return f"{self.generation}/{self.role}/{self.number}"

    @property
    def label(self) -> str:
        """As people read it."""
        return f"{self.role} {self.number}" + (f" of generation {self.generation}" if self.generation else "")

    def name_in(self, group: str) -> str:
        """The instance id, or a router's id."""
        if self.role == "router":
            return f"{group}-router-{self.number}"
        return f"{group}-{self.generation}-{self.role}-{self.number}"


def member_at(path: str) -> Member | None:
    """The member that ``path`` spells, None for anything else."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    generation, role, number = found.groups()
    roles: Mapping[str, MemberRole] = {name: name for name in ROLES}
    return Member(int(generation), roles[role], int(number))


def of_role(members: Iterable[Member], generation: int, role: MemberRole) -> list[Member]:
    """Those of ``members`` that have this role in ``generation``, which a router is not asked for; by number."""
    wanted = ROUTERS if role == "router" else generation
    return sorted(one for one in members if one.role == role and one.generation == wanted)


def additional(taken: Iterable[int], count: int) -> list[int]:
    """The ``count`` smallest numbers from 1 that nobody in ``taken`` has."""
    used = set(taken)
    free = (number for number in range(1, len(used) + count + 1) if number not in used)
    return [next(free) for _ in range(count)]
