"""What was found about a group, for people and for programs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pdcore.group.finding import Finding, refused
from pdcore.group.validation.rules import NOT_APPLICABLE, rule_of
from pdcore.topology.records import Json


def document(name: str | None, found: Sequence[Finding]) -> dict[str, Json]:
    """The verdict for programs. ``name`` is the group's, None where the file could not be read so far."""
    return {
        "group": name,
        "accepted": not refused(found),
        "findings": [one.document() | {"rule": rule_of(one.code)} for one in found],
        "not_applicable": [{"rule": rule, "why": why} for rule, why in NOT_APPLICABLE.items()],
    }


def table_lines(file: str, found: Sequence[Finding], width: int) -> Iterator[str]:
    """The verdict for people: a row per finding, what to do below it."""
    codes = max((len(one.code) for one in found), default=0)
    indent = " " * (codes + 11)
    for one in found:
        said = f"{one.path}: {one.message}" if one.path else one.message
        first, *others = textwrap.wrap(said, max(40, width - len(indent))) or [""]
        yield f"{one.severity:<8}  {one.code:<{codes}} {first}"
        yield from (f"{indent}{line}" for line in others)
        yield from (
            f"{indent}{line}" for line in textwrap.wrap(f"→ {one.remedy}", max(40, width - len(indent)))
        )
    against = len(refused(found))
    advice = len(found) - against
    advised = f", {advice} of advice" if advice else ""
    reasons = f"refused, {against} reason{'' if against == 1 else 's'}"
    yield f"{file}: {reasons if against else 'accepted'}{advised}"
