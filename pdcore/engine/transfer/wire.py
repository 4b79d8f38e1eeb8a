"""Messages between a decode rank (DEALER) and a prefill rank (ROUTER): one msgpack frame each, schemas only.

``token`` is a random id that decode chose and passed over the authenticated link together with its memory; a control
message whose token names no live link is dropped. Times travel as remaining milliseconds. Every message may arrive
twice: seq and token make each of them idempotent.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from pdcore.errors import ErrorCode

WIRE_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 4 << 20
MAX_BLOCKS: Final = 1 << 19
MAX_ROOM: Final = (1 << 63) - 1
TOKEN_BYTES: Final = 16

Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=1024)]
Seq = Annotated[int, Meta(ge=1, le=MAX_ROOM)]
Room = Annotated[int, Meta(ge=1, le=MAX_ROOM)]
Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]
Blocks = Annotated[tuple[Index, ...], Meta(min_length=1, max_length=MAX_BLOCKS)]


class RankIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one rank."""

    instance_id: Name
    incarnation: Name
    dp: Index = 0
    cp: Index = 0
    tp: Index = 0

    def __str__(self) -> str:
        return f"{self.instance_id} rank {self.dp}.{self.cp}.{self.tp} (incarnation {self.incarnation})"


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Decode, once per link: who I am, whom I want, what my memory looks like."""

    token: Token
    version: Count
    decode: RankIdentity
    expected_incarnation: Name
    layout: Name
    blocks: Count
    slots: Count


class Handshake(msgspec.Struct, frozen=True, kw_only=True, tag="handshake"):
    """Decode: put this room's KV into these blocks (one list per KV group) and its record into this slot."""

    token: Token
    seq: Seq
    room: Room
    slot: Index
    groups: Annotated[tuple[Blocks, ...], Meta(min_length=1, max_length=1)]
    prompt_len: Count
    remaining_ms: Milliseconds


class Query(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """Decode: how is this seq doing? Repeated while a room is open, so that a lost notice is only late."""

    token: Token
    seq: Seq


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Decode: this seq is over, and no seq up to it may start. Repeated until ``Drained``."""

    token: Token
    seq: Seq
    room: Room
    code: ErrorCode


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


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Prefill: this seq will not be delivered. ``drained``: and no write of it can land any more."""

    token: Token
    seq: Seq
    code: ErrorCode
    message: Text
    drained: bool
    in_doubt: bool = False


class Drained(msgspec.Struct, frozen=True, kw_only=True, tag="drained"):
    """Prefill: every write of this seq has ended. ``in_doubt``: but one of them may still land."""

    token: Token
    seq: Seq
    in_doubt: bool = False


ToPrefill = Hello | Handshake | Query | Abort
ToDecode = Welcome | Refused | Accepted | Failed | Drained
Message = TypeVar("Message")


class MalformedFrame(ValueError):
    """The bytes are no message of the expected schema."""


_encoder: Final = msgspec.msgpack.Encoder()
_to_prefill: Final = msgspec.msgpack.Decoder(ToPrefill)
_to_decode: Final = msgspec.msgpack.Decoder(ToDecode)


def encode(message: ToPrefill | ToDecode) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def read_to_prefill(frame: bytes) -> ToPrefill:
    """The message a prefill rank got; :class:`MalformedFrame` for anything else."""
    return _read(_to_prefill, frame)


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
