"""What a DP leader orders of each rank's side of a hand-off, and what a side reports. Schemas only.

Every rank of a DP group gets the same orders in the same sequence, for its own part: a prefill rank writes to the
decode ranks that need its heads or blocks, a decode rank asks all its source ranks. Each event comes once per rank,
after all its counterparts have said so. Durations travel as remaining milliseconds.

A prefill rank whose KV nobody needs takes no part: it hears no handshake, reports nothing about the room, and takes
``Send`` as the end of it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pdcore.engine.kv.blocks import BlockLists
from pdcore.errors import ErrorCode

MAX_TOP_LOGPROBS: Final = 20


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Log probabilities of one sampled token: its own, and the ``top`` (token, logprob) pairs, best first."""

    logprob: float
    top: Annotated[tuple[tuple[int, float], ...], Meta(max_length=MAX_TOP_LOGPROBS)] = ()


class PrefillPeer(msgspec.Struct, frozen=True, kw_only=True):
    """One prefill rank, as the leader read it from the keyspace."""

    instance_id: str
    incarnation: str
    dp: int
    cp: int
    tp: int
    rank_ip: str
    rank_port: int
    transfer: dict[str, object]


class PrefillGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The DP group of one prefill incarnation that has a request's KV: all its cp x tp ``ranks``."""

    instance_id: str
    incarnation: str
    dp: int
    dp_size: int
    cp_size: int
    tp_size: int
    ranks: tuple[PrefillPeer, ...]


class DecodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The DP group of one decode incarnation that asked for a room."""

    instance_id: str
    incarnation: str
    dp: int
    cp_size: int
    tp_size: int


# Prefill: orders


class Expect(msgspec.Struct, frozen=True, kw_only=True, tag="expect"):
    """The leg of ``room`` arrived. ``expected_peer`` is the decode incarnation that will ask (None: any).

    What cannot be expected (a room in use, too many rooms) comes back as ``SendFailed``.
    """

    room: int
    expected_peer: str | None
    prompt_len: int
    remaining_ms: int


class SendAhead(msgspec.Struct, frozen=True, kw_only=True, tag="send_ahead"):
    """The KV of ``computed`` of the ``kv_len`` tokens of a ``Handshaken`` room is in ``blocks``: blocks that are full may
    be written. They are read until ``WriteEnded``; ``Send`` or ``Fail`` follows.

    ``first`` unless it was ordered for this room before; ``computed`` grows, up to ``kv_len``.
    """

    room: int
    blocks: BlockLists
    kv_len: int
    computed: int
    first: bool


class Send(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """The KV of a ``Handshaken`` room is complete in ``blocks``; they are read until ``WriteEnded``. The first
    ``cached_blocks`` of them were there before. ``first`` unless a part of it was ordered to be sent ahead."""

    room: int
    blocks: BlockLists
    first_token: int
    kv_len: int
    aux: TokenLogprobs | None = None
    cached_blocks: int = 0
    first: bool = True


class Announce(msgspec.Struct, frozen=True, kw_only=True, tag="announce"):
    """``Send`` of ``room`` follows in moments: decode ranks that can be told should be awake."""

    room: int


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="fail"):
    """The leg of ``room`` is over on our side: no ``SendFailed`` follows, ``WriteEnded`` does if it was sent."""

    room: int
    code: ErrorCode
    message: str


# Prefill: events


class Handshaken(msgspec.Struct, frozen=True, kw_only=True, tag="handshaken"):
    """The leg and every decode rank that needs a part of this rank's KV are here: the room may be computed."""

    room: int
    decode: DecodeGroup


class WriteEnded(msgspec.Struct, frozen=True, kw_only=True, tag="write_ended"):
    """No write of ``room`` reads its source blocks any more, and none will. Once per room that a rank that takes part
    was ordered to send, or to send ahead; where a write is in doubt, only when that decode rank is gone."""

    room: int


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """KV and slots are in the memory of every decode rank this one writes to."""

    room: int


class SendFailed(msgspec.Struct, frozen=True, kw_only=True, tag="send_failed"):
    """The leg is over at this rank without a hand-off. Not said of rooms that were ordered to ``Fail``."""

    room: int
    code: ErrorCode
    message: str


# Decode: orders


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Ask ``prefill`` for the KV of ``room``, into ``blocks``. ``handoff`` grows strictly with every ``Open``.

    What cannot be opened (a pair that does not fit, no free slot) comes back as ``HandoffFailed`` and ``Drained``.
    """

    handoff: int
    room: int
    prefill: PrefillGroup
    blocks: BlockLists
    prompt_len: int
    remaining_ms: int


class AbortHandoff(msgspec.Struct, frozen=True, kw_only=True, tag="abort_handoff"):
    """Nobody wants this hand-off any more: no ``HandoffFailed`` follows, ``Drained`` does. Ended ones are ignored."""

    handoff: int
    code: ErrorCode


# Decode: events


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag="arrived"):
    """KV and first token are here from all source ranks. The blocks belong to the request alone. Prefill found
    ``cached_blocks`` of them in its cache."""

    handoff: int
    first_token: int
    kv_len: int
    aux: TokenLogprobs | None = None
    cached_blocks: int = 0


class HandoffFailed(msgspec.Struct, frozen=True, kw_only=True, tag="handoff_failed"):
    """The hand-off is over. Its blocks stay quarantined until ``Drained``."""

    handoff: int
    code: ErrorCode
    message: str


class Drained(msgspec.Struct, frozen=True, kw_only=True, tag="drained"):
    """No write of this hand-off can land at this rank any more: its blocks may be used again."""

    handoff: int


PrefillOrder = Expect | SendAhead | Announce | Send | Fail
PrefillEvent = Handshaken | WriteEnded | Sent | SendFailed
DecodeOrder = Open | AbortHandoff
DecodeEvent = Arrived | HandoffFailed | Drained
Order = PrefillOrder | DecodeOrder
SideEvent = PrefillEvent | DecodeEvent
