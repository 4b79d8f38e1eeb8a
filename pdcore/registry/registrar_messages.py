"""What a parent process and its registrar say to each other, as JSON in length-framed messages.

Both directions are level-triggered: the parent repeats its whole wish (:class:`Want`), the registrar its whole
:class:`Status`, so that a lost or restarted registrar is brought up to date by saying everything once more.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pdcore.config import StoreAccess
from pdcore.errors import PdcoreError
from pdcore.telemetry import LogFormat
from pdcore.topology.records import DepartureReason

MAX_MESSAGE_BYTES: Final = 16 << 20
PARENT: Final = "parent"
"""Name of the parent process where ranks go by their position (``0.0.0``)."""


class RegistrarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who registers where. ``ttl_s`` is the lease's.

    ``runtime_dir`` is the parent's directory of sockets, removed here when the parent died without doing so.
    """

    store: StoreAccess
    cluster: str
    instance_id: str
    incarnation: str
    role: str
    ttl_s: int
    take_over: bool
    log_format: LogFormat
    log_level: str
    runtime_dir: str | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message; the parent's pidfd rides along.

    ``claimed`` says that an earlier registrar of this incarnation took the claim, from ``predecessor`` if any.
    """

    spec: RegistrarSpec
    parent_pid: int
    claimed: bool
    predecessor: str | None


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """A descriptor rides along: the member's pidfd, or the read end of the pipe it beats on."""

    member: str
    what: Literal["process", "beats"]


class Want(msgspec.Struct, frozen=True, kw_only=True, tag="want"):
    """The whole desired record, each value as it is to stand in the store.

    ``instance`` is None on a parent that is not the leader's. A rank with None is this parent's and to be absent;
    a rank not named is not this parent's.
    """

    version: int
    instance: str | None
    ranks: dict[str, str | None]


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """Withdraw everything, saying why, then end; give up after ``timeout_s``."""

    reason: DepartureReason
    timeout_s: float


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """All a registrar has to say.

    ``refused``: a living incumbent holds the id (a sentence). ``superseded_by``: the incarnation that took it from
    us. ``store_error``: why the last call failed, None while calls succeed. ``version``: the newest
    :class:`Want` that stands in the store, as of ``revision``. ``withdrawn``: members absent because they exited or
    fell silent. ``left``: withdrawn for good.
    """

    claimed: bool = False
    predecessor: str | None = None
    refused: str | None = None
    superseded_by: str | None = None
    store_error: str | None = None
    version: int = 0
    revision: int = 0
    withdrawn: tuple[str, ...] = ()
    left: bool = False


FromParent = Start | Watch | Want | Leave


class Malformed(PdcoreError):
    """The other end of the channel sent what the schema does not allow."""


_from_parent: Final[msgspec.json.Decoder[FromParent]] = msgspec.json.Decoder(FromParent)
_status: Final[msgspec.json.Decoder[Status]] = msgspec.json.Decoder(Status)


def encode(message: FromParent | Status) -> bytes:
    """The message as JSON."""
    return msgspec.json.encode(message)


def decode_from_parent(frame: bytes) -> FromParent:
    """What the parent said; raises :class:`Malformed`."""
    try:
        return _from_parent.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"parent's message: {error}") from error


def decode_status(frame: bytes) -> Status:
    """What the registrar said; raises :class:`Malformed`."""
    try:
        return _status.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"registrar's message: {error}") from error
