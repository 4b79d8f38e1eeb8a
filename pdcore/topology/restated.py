"""The commonest change of all, read without reading: an instance that says another state and nothing else anew.

Every start, drain and departure is such a change, and every follower in the fleet hears it. Of the two dozen fields one
differs, so the new value is the old one with that member exchanged; then the old record with that state is its meaning.
"""

from __future__ import annotations

from typing import Final, get_args

from pdcore.topology.codec import MAX_VALUE_BYTES
from pdcore.topology.records import InstanceRecord, State

_NAME: Final = b'"state"'
_SAID: Final[dict[State, bytes]] = {state: f'"state": "{state}"'.encode() for state in get_args(State)}


def restated(before: bytes, record: InstanceRecord, value: bytes) -> InstanceRecord | None:
    """What ``value`` means if it differs from ``before``, which means ``record``, in the state alone; None otherwise.

    ``before`` must say ``state`` once and without escapes: then no other member can be meant by those bytes.
    """
    said = _SAID[record.state]
    if len(value) > MAX_VALUE_BYTES or said not in before or before.count(_NAME) != 1 or b"\\" in before:
        return None
    for state, instead in _SAID.items():
        if state != record.state and before.replace(said, instead) == value:
            return record._replace(state=state)
    return None
