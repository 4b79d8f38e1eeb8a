"""States of one hand-off at one rank, on either side. Nothing else changes a state, and this table does not know which
side asks.

A smaller number is further from done, and ``FAILED`` is below all of them. ``SUCCESS`` and ``FAILED`` are final. Every state names the deadlines that run in it; the ledgers ask this table.
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
    SENDING_AHEAD = 3
    TRANSFERRING = 4
    SUCCESS = 5


class TransferEvent(Enum):
    """What can happen to a room at one rank."""

    HANDSHAKEN = "handshaken"  # decode sent its handshake; prefill has all of them and the leg
    BEGUN_AHEAD = "begun ahead"  # prefill submits the first write of a prompt that it still computes
    STARTED = "started"  # prefill may submit the last write; decode cannot see either
    DELIVERED = "delivered"  # the slot says that everything is there
    FAILED = "failed"


class Deadline(Enum):
    """What ends a state that nothing else ends. ``REQUEST`` and ``SILENCE`` fail the request, and never free memory."""

    REQUEST = "request"  # the request's own time is over
    SILENCE = "silence"  # a peer that owes an answer gave none for the session's ``silence_s``
    QUARANTINE = "quarantine"  # memory is in quarantine for too long: the scheduler orders the peer's end


class IllegalTransition(ValueError):
    """The event cannot happen in that state; nothing changed."""


_S = TransferState
_E = TransferEvent

TRANSITIONS: Final[Mapping[TransferState, Mapping[TransferEvent, TransferState]]] = MappingProxyType(
    {
        _S.BOOTSTRAPPING: {_E.HANDSHAKEN: _S.WAITING_FOR_INPUT, _E.FAILED: _S.FAILED},
        _S.WAITING_FOR_INPUT: {
            _E.BEGUN_AHEAD: _S.SENDING_AHEAD,
            _E.STARTED: _S.TRANSFERRING,
            _E.DELIVERED: _S.SUCCESS,  # decode's view: it goes straight from asking to having
            _E.FAILED: _S.FAILED,
        },
        _S.SENDING_AHEAD: {_E.STARTED: _S.TRANSFERRING, _E.FAILED: _S.FAILED},
        _S.TRANSFERRING: {_E.DELIVERED: _S.SUCCESS, _E.FAILED: _S.FAILED},
        _S.SUCCESS: {},
        _S.FAILED: {},
    }
)

DEADLINES: Final[Mapping[TransferState, frozenset[Deadline]]] = MappingProxyType(
    {
        _S.BOOTSTRAPPING: frozenset({Deadline.REQUEST, Deadline.SILENCE}),
        _S.WAITING_FOR_INPUT: frozenset({Deadline.REQUEST, Deadline.SILENCE}),
        _S.SENDING_AHEAD: frozenset({Deadline.REQUEST, Deadline.SILENCE}),
        _S.TRANSFERRING: frozenset({Deadline.REQUEST, Deadline.SILENCE}),
        _S.SUCCESS: frozenset(),
        _S.FAILED: frozenset({Deadline.QUARANTINE}),
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


def runs_in(state: TransferState, deadline: Deadline) -> bool:
    """Whether ``deadline`` runs in ``state``."""
    return deadline in DEADLINES[state]
