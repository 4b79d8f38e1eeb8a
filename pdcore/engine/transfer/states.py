"""States of one hand-off, on either side. Nothing else changes a state, and this table does not know which side asks.

The numbers are the protocol's: a smaller one is further from done, and ``FAILED`` is below all of them. ``SUCCESS``
and ``FAILED`` are final.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final


class TransferState(IntEnum):
    """Where one room stands at one rank."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


class TransferEvent(Enum):
    """What can happen to a room at one rank."""

    HANDSHAKEN = "handshaken"  # decode sent its handshake; prefill has it and the leg
    STARTED = "started"  # prefill submits the first write; decode cannot see this
    DELIVERED = "delivered"  # the slot says that everything is there
    FAILED = "failed"


class IllegalTransition(ValueError):
    """The event cannot happen in that state; nothing changed."""


_S = TransferState
_E = TransferEvent

TRANSITIONS: Final[Mapping[TransferState, Mapping[TransferEvent, TransferState]]] = MappingProxyType(
    {
        _S.BOOTSTRAPPING: {_E.HANDSHAKEN: _S.WAITING_FOR_INPUT, _E.FAILED: _S.FAILED},
        _S.WAITING_FOR_INPUT: {
            _E.STARTED: _S.TRANSFERRING,
            _E.DELIVERED: _S.SUCCESS,  # decode's view: it goes straight from asking to having
            _E.FAILED: _S.FAILED,
        },
        _S.TRANSFERRING: {_E.DELIVERED: _S.SUCCESS, _E.FAILED: _S.FAILED},
        _S.SUCCESS: {},
        _S.FAILED: {},
    }
)


def advance(state: TransferState, event: TransferEvent) -> TransferState:
    """The state after ``event``; :class:`IllegalTransition` when the table has no such step."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event.value} cannot happen to a room that is {state.name}") from None


def is_final(state: TransferState) -> bool:
    """Whether no event can change ``state`` any more."""
    return not TRANSITIONS[state]
