"""Hand-offs of a decode rank that come in parts, one per source rank. Pure.

A hand-off has arrived when all its parts were delivered and agree; it has failed when the first part did, and the
others are given up; it is drained when nothing of any part can land any more.

Mutable state: ``_handoffs`` (until arrived or drained), ``_of`` (which hand-off a seq is a part of).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pdcore.engine.transfer.orders import Arrived, DecodeEvent, Drained, HandoffFailed, TokenLogprobs
from pdcore.engine.transfer.slot import Slot
from pdcore.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the request of this seq."""

    seq: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Part:
    """What one source rank delivered. ``aux`` "broken": the record that the slot speaks of is not there."""

    slot: Slot
    aux: TokenLogprobs | Literal["broken"] | None = None

    @property
    def claim(self) -> tuple[int, int]:
        """What all parts must agree on."""
        return self.slot.token, self.slot.kv_len


@dataclass(slots=True)
class _Handoff:
    handoff: int
    waiting: set[int]
    over: bool = False
    parts: list[Part] = field(default_factory=list)


class Gathering:
    """See the module."""

    def __init__(self) -> None:
        self._handoffs: dict[int, _Handoff] = {}
        self._of: dict[int, _Handoff] = {}

    def __len__(self) -> int:
        return len(self._handoffs)

    def open(self, handoff: int, seqs: Iterable[int]) -> None:
        """A hand-off in these parts, at least one."""
        known = _Handoff(handoff, set(seqs))
        self._handoffs[handoff] = known
        self._of.update(dict.fromkeys(known.waiting, known))

    def delivered(self, seq: int, part: Part) -> list[DecodeEvent | GiveUp]:
        """The part of ``seq`` is here, and nothing more of it lands."""
        known = self._of.pop(seq)
        known.waiting.discard(seq)
        known.parts.append(part)
        return self._fail(known, "prefill_failed", _objection(known.parts)) + self._conclude(known)

    def ended(self, seq: int, code: ErrorCode, message: str) -> list[DecodeEvent | GiveUp]:
        """The part of ``seq`` will not come. Empty when the hand-off was over already."""
        known = self._of.get(seq)
        return [] if known is None else self._fail(known, code, message)

    def freed(self, seq: int) -> list[DecodeEvent | GiveUp]:
        """Nothing of ``seq`` can land any more."""
        known = self._of.pop(seq)
        known.waiting.discard(seq)
        return self._conclude(known)

    def abort(self, handoff: int, code: ErrorCode) -> list[GiveUp]:
        """Nobody wants it any more. Empty for one that is over or unknown."""
        known = self._handoffs.get(handoff)
        if known is None or known.over:
            return []
        known.over = True
        return [GiveUp(seq, code) for seq in sorted(known.waiting)]

    def _fail(self, known: _Handoff, code: ErrorCode, message: str) -> list[DecodeEvent | GiveUp]:
        if known.over or not message:
            return []
        known.over = True
        failed = HandoffFailed(handoff=known.handoff, code=code, message=message)
        return [failed, *(GiveUp(seq, code) for seq in sorted(known.waiting))]

    def _conclude(self, known: _Handoff) -> list[DecodeEvent | GiveUp]:
        if known.waiting:
            return []
        del self._handoffs[known.handoff]
        if known.over:
            return [Drained(handoff=known.handoff)]
        (token, kv_len), *_ = [part.claim for part in known.parts]
        aux = next((part.aux for part in known.parts if isinstance(part.aux, TokenLogprobs)), None)
        cached = known.parts[0].slot.cached_blocks
        return [
            Arrived(handoff=known.handoff, first_token=token, kv_len=kv_len, aux=aux, cached_blocks=cached)
        ]


def _objection(parts: list[Part]) -> str:
    claims = sorted({part.claim for part in parts})
    if len(claims) > 1:
        return f"prefill's ranks sent different (first token, KV length): {claims}"
    if any(part.aux == "broken" for part in parts):
        return "the logprobs of the first token are not in their record"
    return ""
