"""What a router tells a leader about one leg: bootstrap fields in the body, expectations in headers. Pure.

The internal name of a request is never a client's text: :func:`public_request_id` is for logs and answers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pdcore.engine.fields import Body, integer, text, wrong
from pdcore.errors import ApiError
from pdcore.topology.records import Role

HIGHEST_ROOM: Final = (1 << 63) - 1
LONGEST_HOST: Final = 253
LONGEST_REQUEST_ID: Final = 128
LONGEST_BUDGET_MS: Final = 86_400_000

REQUEST_ID: Final = "x-request-id"
PREFILL_INCARNATION: Final = "x-pdcore-prefill-incarnation"
DECODE_INCARNATION: Final = "x-pdcore-decode-incarnation"
REMAINING_MS: Final = "x-pdcore-remaining-ms"
KV: Final = "x-pdcore-kv"
LEG_FIELDS: Final = ("bootstrap_room", "bootstrap_host", "bootstrap_port", "disagg_prefill_dp_rank")

Phase = Literal["starting", "serving", "draining", "failed"]
Headers = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One half of a disaggregated request. ``dp_rank`` None: nobody chose the prefill rank."""

    room: int
    host: str
    port: int
    dp_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the sender believed: both incarnations (None: it does not say) and how long it still waits."""

    prefill: str | None
    decode: str | None
    remaining_ms: int | None


def parse_leg(body: Body) -> Leg:
    """The bootstrap fields of a prefill or decode leg, or ApiError 400 naming the one that is missing or wrong."""
    return Leg(
        room=_needed(integer(body, "bootstrap_room", 1, HIGHEST_ROOM), "bootstrap_room"),
        host=_needed(text(body, "bootstrap_host", LONGEST_HOST), "bootstrap_host"),
        port=_needed(integer(body, "bootstrap_port", 1, 65535), "bootstrap_port"),
        dp_rank=integer(body, "disagg_prefill_dp_rank", 0, 65535),
    )


def parse_legs(body: Body, items: int) -> tuple[Leg, ...]:
    """The leg of each of a request's ``items`` answers, or ApiError 400 naming the field.

    Several have lists of rooms; the other fields are lists of equal length, or one value for all. They all go the same
    way, and no two have the same room.
    """
    found = tuple(parse_leg(each) for each in _each(body, items))
    _check_distinct([leg.room for leg in found])
    for name in ("host", "port"):
        if len({getattr(leg, name) for leg in found}) > 1:
            raise wrong(f"bootstrap_{name}", "must name the same prefill instance for every prompt")
    return found


def parse_rooms(body: Body, items: int) -> tuple[int | None, ...]:
    """The rooms of a request to a unified engine: only echoed, but checked."""
    if body.get("bootstrap_room") is None:
        return (None,) * items
    found = tuple(integer(each, "bootstrap_room", 1, HIGHEST_ROOM) for each in _each(body, items))
    _check_distinct(found)
    return found


def _each(body: Body, items: int) -> list[Body]:
    """The bootstrap fields of each item."""
    fields = {name: body[name] for name in LEG_FIELDS if body.get(name) is not None}
    if items == 1:
        return [fields]
    for name, value in fields.items():
        if isinstance(value, list) and len(value) != items:
            raise wrong(name, f"has {len(value)} entries for {items} answers")
    room = fields.get("bootstrap_room")
    if room is not None and not isinstance(room, list):
        raise wrong("bootstrap_room", f"must be a list of {items} rooms, one for each answer", room)
    return [
        {name: value[item] if isinstance(value, list) else value for name, value in fields.items()}
        for item in range(items)
    ]


def _check_distinct(rooms: Sequence[int | None]) -> None:
    if len(set(rooms)) < len(rooms):
        raise wrong("bootstrap_room", "has the same room twice")


def choose_dp_rank(leg: Leg, dp_size: int) -> int:
    """The prefill DP rank of this leg, or ApiError 400 when it is out of range or was never chosen."""
    if leg.dp_rank is None and dp_size == 1:
        return 0
    if leg.dp_rank is None or leg.dp_rank >= dp_size:
        shown = "is missing" if leg.dp_rank is None else f"is {leg.dp_rank}"
        message = f"disagg_prefill_dp_rank {shown}; the prefill instance has {dp_size} DP ranks"
        raise ApiError("invalid_request", message, param="disagg_prefill_dp_rank")
    return leg.dp_rank


def parse_expectation(headers: Headers) -> Expectation:
    """The sender's beliefs from lower-case ``headers``, or ApiError 400 for a malformed budget."""
    raw = headers.get(REMAINING_MS)
    if raw is not None and not _is_budget(raw):
        message = f"{REMAINING_MS} must be milliseconds from 0 to {LONGEST_BUDGET_MS}"
        raise ApiError("invalid_request", message, param=REMAINING_MS)
    return Expectation(
        prefill=headers.get(PREFILL_INCARNATION) or None,
        decode=headers.get(DECODE_INCARNATION) or None,
        remaining_ms=None if raw is None else int(raw),
    )


def refusal(role: Role, phase: Phase, incarnation: str, expected: Expectation) -> ApiError | None:
    """Why a leg is not executed here (421), decided before any work; None when it may go on."""
    if phase == "draining":
        return _refused("draining", "this instance is draining")
    if phase != "serving":
        return _refused("not_ready", f"this instance is {phase}")
    wanted = {
        "prefill": (expected.prefill,),
        "decode": (expected.decode,),
        "unified": (expected.prefill, expected.decode),
    }[role]
    for other in wanted:
        if other is not None and other != incarnation:
            return _refused("stale", f"this instance is incarnation {incarnation}, not {other[:64]}")
    return None


def stale_peer(instance: str, expected: str | None) -> ApiError:
    """421: the prefill instance this decode leg names is not the one known here."""
    return _refused("stale", f"prefill instance {instance} is not known here as incarnation {expected}")


def public_request_id(headers: Headers) -> str | None:
    """The sender's request id if it is 1 to 128 visible ASCII characters, else None."""
    given = headers.get(REQUEST_ID, "")
    visible = all("!" <= character <= "~" for character in given)
    return given if visible and 0 < len(given) <= LONGEST_REQUEST_ID else None


def _is_budget(raw: str) -> bool:
    return raw.isascii() and raw.isdigit() and len(raw) <= 12 and int(raw) <= LONGEST_BUDGET_MS


def _refused(reason: Literal["stale", "draining", "not_ready"], message: str) -> ApiError:
    return ApiError("not_executed", message, refused=reason)


def _needed(value: T | None, name: str) -> T:
    if value is None:
        raise ApiError(
            "invalid_request", f"{name} is missing; this engine serves one leg of a pair", param=name
        )
    return value
