"""What both ends of a ``tcp`` link agree on. Pure: bytes and values, no sockets.

Greeting: prefill sends a nonce; decode answers with its offer (token, size, a nonce of its own) and a proof; prefill
answers with a proof over both. A proof is an HMAC under the link key, so neither a recorded offer nor a recorded answer
is worth anything. The key is random per start of a prefill rank and stands in its record: whoever may read the keyspace
may link, and with a shared secret only who knows that as well.

Afterwards prefill sends frames and decode acknowledges each with 20 bytes. A frame is a head, one column of offsets and
one of lengths, then the bytes in that order. A bell is a frame of no rows that nobody acknowledges.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from pdcore.engine.transfer.plan import Column
from pdcore.engine.transfer.wire import Token
from pdcore.errors import PeerGone

NAME: Final = "tcp"
LINK_VERSION: Final = 1
KEY_BYTES: Final = 32
PROOF_BYTES: Final = 32
NONCE_BYTES: Final = 32
MAX_OFFER_BYTES: Final = 2048
MAX_ROWS: Final = 1 << 16
MAX_FRAME_BYTES: Final = 1 << 40
CELL_BYTES: Final = 8

GREETING: Final = struct.Struct(f"<4sI{NONCE_BYTES}s")
OFFER: Final = struct.Struct("<4sI")
HEAD: Final = struct.Struct("<4sIIQQ")
ACK: Final = struct.Struct("<4sQQ")
_GREETING_MAGIC: Final = b"pdkg"
_OFFER_MAGIC: Final = b"pdko"
_HEAD_MAGIC: Final = b"pdkf"
_ACK_MAGIC: Final = b"pdka"

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Text = Annotated[str, Meta(min_length=1, max_length=256)]
_CELL: Final = np.dtype("<i8")


class Malformed(ValueError):
    """The bytes are not what the protocol has at this place."""


class Kind(IntEnum):
    """``RECORD`` is a write after which decode should look; ``BELL`` moves nothing and only says so."""

    BLOCKS = 1
    RECORD = 2
    BELL = 3


class Outcome(IntEnum):
    """What an ack says: the bytes are in the region, or none of this frame lands any more and why."""

    LANDED = 1
    REVOKED = 2
    OUT_OF_BOUNDS = 3


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How a prefill rank is linked to. ``key`` is hexadecimal."""

    engine: _Text
    version: int
    host: _Text
    port: _Port
    key: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * KEY_BYTES}}}$")]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Decode's memory: ``about`` is for the engine that uses the link for something else than frames."""

    token: Token
    nbytes: Annotated[int, Meta(ge=1, le=1 << 50)]
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    about: Annotated[dict[_Text, str | int], Meta(max_length=8)] = {}


@dataclass(frozen=True, slots=True)
class Head:
    """One frame's first bytes: ``rows`` rows of ``total`` bytes together, for ``seq``."""

    kind: Kind
    rows: int
    total: int
    seq: int


_offer_decoder: Final = msgspec.msgpack.Decoder(Offer)


def read_endpoint(document: Mapping[str, object], name: str) -> Endpoint:
    """A prefill rank's endpoint for the engine ``name``; ``PeerGone`` when it is none that we can use."""
    try:
        endpoint = msgspec.convert(dict(document), Endpoint)
    except msgspec.ValidationError as error:
        raise PeerGone(f"its transfer endpoint is not one of {name}: {error}", in_doubt=False) from error
    if (endpoint.engine, endpoint.version) != (name, LINK_VERSION):
        raise PeerGone(
            f"its transfer endpoint is {endpoint.engine} version {endpoint.version}, not {name} version "
            f"{LINK_VERSION}",
            in_doubt=False,
        )
    return endpoint


def link_key(published: str, secret: bytes) -> bytes:
    """The key of proofs: what the record says, mixed with the shared secret (empty: none is configured)."""
    return hmac.digest(secret, bytes.fromhex(published), hashlib.sha256)


def greeting(nonce: bytes) -> bytes:
    """Prefill's first bytes."""
    return GREETING.pack(_GREETING_MAGIC, LINK_VERSION, nonce)


def read_greeting(raw: bytes) -> bytes:
    """Prefill's nonce."""
    magic, version, nonce = GREETING.unpack(raw)
    if magic != _GREETING_MAGIC or version != LINK_VERSION:
        raise Malformed(f"no greeting of version {LINK_VERSION}")
    return bytes(nonce)


def offer_frame(offer: Offer, nonce: bytes, key: bytes) -> bytes:
    """Decode's answer to the greeting ``nonce``."""
    body = msgspec.msgpack.encode(offer)
    return OFFER.pack(_OFFER_MAGIC, len(body)) + body + _proof(key, b"decode", nonce, body)


def offer_length(head: bytes) -> int:
    """Bytes that follow the first ones of an offer, proof included."""
    magic, length = OFFER.unpack(head)
    if magic != _OFFER_MAGIC or not 0 < length <= MAX_OFFER_BYTES:
        raise Malformed("no offer")
    return int(length) + PROOF_BYTES


def read_offer(rest: bytes, nonce: bytes, key: bytes) -> Offer:
    """The offer in ``rest``, if its proof holds. Nothing of it is looked at before that."""
    body, proof = rest[:-PROOF_BYTES], rest[-PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"decode", nonce, body)):
        raise Malformed("its proof is wrong: another secret, or another start of this rank")
    try:
        return _offer_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"no offer: {error}") from error


def welcome(offer: Offer, nonce: bytes, key: bytes) -> bytes:
    """Prefill's proof that it knows the key too."""
    return _proof(key, b"prefill", nonce, offer.nonce + offer.token)


def check_welcome(raw: bytes, offer: Offer, nonce: bytes, key: bytes) -> None:
    """:class:`Malformed` unless ``raw`` answers our offer."""
    if not hmac.compare_digest(raw, welcome(offer, nonce, key)):
        raise Malformed("its proof is wrong: another secret, or another start of this rank")


def frame(head: Head, offsets: Column, lengths: Column) -> bytes:
    """Everything of a frame but its payload."""
    packed = HEAD.pack(_HEAD_MAGIC, head.kind, head.rows, head.total, head.seq)
    return packed + offsets.astype(_CELL).tobytes() + lengths.astype(_CELL).tobytes()


def read_head(raw: bytes) -> Head:
    """The head of a frame, its sizes within the limits."""
    magic, kind, rows, total, seq = HEAD.unpack(raw)
    if magic != _HEAD_MAGIC or kind not in Kind.__members__.values():
        raise Malformed("no frame begins here")
    empty = kind == Kind.BELL
    if (rows, total) != (0, 0) if empty else not 0 < rows <= min(MAX_ROWS, total) <= total <= MAX_FRAME_BYTES:
        raise Malformed(f"a frame of {rows} rows and {total} bytes")
    return Head(Kind(kind), rows, total, seq)


def read_columns(raw: bytes, head: Head) -> tuple[Column, Column]:
    """Offsets and lengths, which must add up to what the head says; whether they fit a region is not asked."""
    cells = np.frombuffer(raw, _CELL).astype(np.int64)
    offsets, lengths = cells[: head.rows], cells[head.rows :]
    # Each length first: a sum of arbitrary 64-bit numbers proves nothing.
    if int(lengths.min()) < 1 or int(lengths.max()) > head.total or int(lengths.sum()) != head.total:
        raise Malformed(f"the rows do not add up to {head.total} bytes")
    return offsets, lengths


def fits(offsets: Column, lengths: Column, nbytes: int) -> bool:
    """Whether every row (of at least one byte each) lies inside a region of ``nbytes``."""
    return int(offsets.min()) >= 0 and bool((offsets <= nbytes - lengths).all())


def ack(outcome: Outcome, seq: int) -> bytes:
    """Decode's answer to one frame."""
    return ACK.pack(_ACK_MAGIC, outcome, seq)


def read_ack(raw: bytes, seq: int) -> Outcome:
    """What became of the frame of ``seq``."""
    magic, outcome, answered = ACK.unpack(raw)
    if magic != _ACK_MAGIC or answered != seq or outcome not in Outcome.__members__.values():
        raise Malformed("no answer to this frame")
    return Outcome(outcome)


def _proof(key: bytes, side: bytes, nonce: bytes, body: bytes) -> bytes:
    return hmac.digest(key, side + nonce + body, hashlib.sha256)
