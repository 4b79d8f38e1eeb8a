"""In which direction tensor parallel sizes of prefill and decode may differ. Pure."""

from __future__ import annotations

from pdcore.group.modes.mode import Mode, TpDirection, TpRule
from pdcore.group.modes.versions import is_at_least


def rule_of(mode: Mode, versions: tuple[str | None, ...]) -> TpRule:
    """The first rule of ``mode`` that holds for engines of all ``versions``; of None nobody knows anything."""
    for rule in mode.tp_rules:
        floor = rule.versions
        if floor is None or (versions and all(is_at_least(version, floor) for version in versions)):
            return rule
    raise AssertionError("the catalogue's last rule holds for every version")


def is_allowed(direction: TpDirection, prefill_tp: int, decode_tp: int) -> bool:
    """Whether ranks of these sizes can hand over to each other."""
    match direction:
        case "any":
            return True
        case "decode_at_least_prefill":
            return decode_tp >= prefill_tp
        case "prefill_at_least_decode":
            return prefill_tp >= decode_tp
        case "one_divides_other":
            return max(prefill_tp, decode_tp) % min(prefill_tp, decode_tp) == 0
