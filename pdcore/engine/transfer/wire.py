"""Messages between a decode rank (DEALER) and a prefill rank (ROUTER): one msgpack frame each, schemas only.

``token`` is a random id that decode chose and passed over the authenticated link together with its memory; a control
message whose token names no live link is dropped. Times travel as remaining milliseconds. Every message may arrive
twice: seq and token make each of them idempotent.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from pdcore.engine.kv.layout import MAX_GROUPS, KvLayout
from pdcore.engine.transfer.failures import Reason
from pdcore.errors import ErrorCode

WIRE_VERSION: Final = 2
MAX_FRAME_BYTES: Final = 4 << 20
MAX_BLOCKS: Final = 1 << 19
MAX_BEAT_SEQS: Final = 4096
MAX_ROOM: Final = (1 << 63) - 1
TOKEN_BYTES: Final = 16

Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=1024)]
Seq = Annotated[int, Meta(ge=1, le=MAX_ROOM)]
Room = Annotated[int, Meta(ge=1, le=MAX_ROOM)]
Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Size = Annotated[int, Meta(ge=1, le=4096)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]
Blocks = Annotated[tuple[Index, ...], Meta(max_length=MAX_BLOCKS)]


class RankIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one rank."""

    instance_id: Name
    incarnation: Name
    dp: Index = 0
    cp: Index = 0
    tp: Index = 0

    @property
    def place(self) -> str:
        """Which rank of which instance, whatever its incarnation."""
        return f"{self.instance_id} rank {self.dp}.{self.cp}.{self.tp}"

    def __str__(self) -> str:
        return f"{self.place} (incarnation {self.incarnation})"


class Greeting(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """What every version of ``Hello`` begins with, so that another version can be refused by name."""

    token: Token
    version: Count


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Decode, once per link: who I am, whom I want, what my DP group and my memory look like.

    ``layout`` is the whole model's; ``blocks`` counts per KV group.
    """

    token: Token
    version: Count
    decode: RankIdentity
    cp_size: Size
    tp_size: Size
    expected_incarnation: Name
    layout: KvLayout
    blocks: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_GROUPS)]
    slots: Count
    probes: Index


class Handshake(msgspec.Struct, frozen=True, kw_only=True, tag="handshake"):
    """Decode: put this room's KV into these blocks (one list per KV group) and its record into this slot."""

    token: Token
    seq: Seq
    room: Room
    slot: Index
    groups: Annotated[tuple[Blocks, ...], Meta(min_length=1, max_length=MAX_GROUPS)]
    prompt_len: Count
    remaining_ms: Milliseconds


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Decode, while rooms are open: are you there, and how are these seqs doing? Answered ``Alive``, and with the last
    word about each seq that is over, so that a lost notice is only late."""

    token: Token
    seqs: Annotated[tuple[Seq, ...], Meta(max_length=MAX_BEAT_SEQS)]


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Decode: this seq is over, and no seq up to it may start. Repeated until ``Drained``."""

    token: Token
    seq: Seq
    room: Room
    code: ErrorCode


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Decode, while the pair is idle: write a record of this seq into this probe slot."""

    token: Token
    seq: Seq
    probe: Index


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Prefill: handshakes on this link are taken from now on."""

    token: Token


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Prefill: this pair cannot work, for this reason. Nothing was and nothing will be written."""

    token: Token
    message: Text


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """Prefill: this seq is known and not failed (also said after the slot was written)."""

    token: Token
    seq: Seq


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """Prefill: the answer to a ``Beat``."""

    token: Token


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Prefill: this seq will not be delivered. ``drained``: and no write of it can land any more."""

    token: Token
    seq: Seq
    code: ErrorCode
    reason: Reason
    message: Text
    drained: bool
    in_doubt: bool = False


class Drained(msgspec.Struct, frozen=True, kw_only=True, tag="drained"):
    """Prefill: every write of this seq has ended. ``in_doubt``: but one of them may still land."""

    token: Token
    seq: Seq
    in_doubt: bool = False


class ProbeFailed(msgspec.Struct, frozen=True, kw_only=True, tag="probe_failed"):
    """Prefill: the probe's record could not be written."""

    token: Token
    seq: Seq
    message: Text


ToPrefill = Hello | Handshake | Beat | Abort | Probe
ToDecode = Welcome | Refused | Accepted | Alive | Failed | Drained | ProbeFailed
Message = TypeVar("Message")


class MalformedFrame(ValueError):
    """The bytes are no message of the expected schema."""


_encoder: Final = msgspec.msgpack.Encoder()
_to_prefill: Final = msgspec.msgpack.Decoder(ToPrefill)
_to_decode: Final = msgspec.msgpack.Decoder(ToDecode)
_greeting: Final = msgspec.msgpack.Decoder(Greeting)


def encode(message: ToPrefill | ToDecode) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def read_to_prefill(frame: bytes) -> ToPrefill | Greeting:
    """The message a prefill rank got, ``Greeting`` for the hello of another version; else :class:`MalformedFrame`."""
    try:
        return _read(_to_prefill, frame)
    except MalformedFrame:
        greeting = _read(_greeting, frame)
        if greeting.version == WIRE_VERSION:
            raise
        return greeting


def read_to_decode(frame: bytes) -> ToDecode:
    """The message a decode rank got; :class:`MalformedFrame` for anything else."""
    return _read(_to_decode, frame)


def _read(decoder: msgspec.msgpack.Decoder[Message], frame: bytes) -> Message:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error


def short(message: str) -> str:
    """``message`` cut to what a notice may carry."""
    return message if len(message) <= 1024 else message[:1023] + "…"
