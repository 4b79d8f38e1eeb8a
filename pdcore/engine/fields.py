"""Reading a JSON object strictly: a field has the type and range it must have, or its name is in the refusal. Pure.

``null`` means "not given". A boolean is no integer, and digits in a string are no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdcore.errors import ApiError

Body = Mapping[str, object]


def kind_of(value: object) -> str:
    """What JSON calls the type of ``value``."""
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


def boolean(body: Body, name: str) -> bool:
    """``body[name]``, false when absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "must be true or false", value)
    return bool(value)


def integer(body: Body, name: str, low: int, high: int) -> int | None:
    """``body[name]`` within ``low … high``; a boolean, a float or digits in a string are not integers."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, "must be an integer", value)
    if not low <= value <= high:
        raise wrong(name, f"must be from {low} to {high}", value)
    return value


def number(body: Body, name: str, low: float, high: float) -> float | None:
    """``body[name]`` within ``low … high`` as a float."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(name, "must be a number", value)
    if not low <= value <= high:
        raise wrong(name, f"must be from {low:g} to {high:g}", value)
    return float(value)


def text(body: Body, name: str, longest: int) -> str | None:
    """``body[name]`` as a non-empty string of at most ``longest`` characters."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(name, "must be a string", value)
    if not 0 < len(value) <= longest:
        raise wrong(name, f"must have 1 to {longest} characters, and has {len(value)}")
    return value


def mapping(body: Body, name: str) -> Body:
    """``body[name]``, an object; empty when absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(name, "must be an object", value)
    return value


def listed(body: Body, name: str, longest: int) -> Sequence[object]:
    """``body[name]``, a list of at most ``longest`` items; empty when absent."""
    value = body.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong(name, "must be a list", value)
    if len(value) > longest:
        raise wrong(name, f"holds {len(value)} items; at most {longest} are supported")
    return value


def token_ids(name: str, values: Sequence[object], vocab_size: int) -> tuple[int, ...]:
    """``values`` as token ids below ``vocab_size``."""
    return tuple(_token_id(name, place, value, vocab_size) for place, value in enumerate(values))


def _token_id(name: str, place: int, value: object, vocab_size: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, f"must hold token ids, which are integers, also at {place}", value)
    if not 0 <= value < vocab_size:
        raise wrong(name, f"must hold token ids from 0 to {vocab_size - 1}, also at {place}", value)
    return value


def shortened(value: object) -> str:
    """``value`` for a message: never more than 40 characters of what a client sent."""
    shown = str(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge integer"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def wrong(name: str, problem: str, *value: object) -> ApiError:
    """The 400 for field ``name``; with a ``value`` it says what was got instead."""
    got = "".join(
        f", got {kind_of(one)}: {shortened(one)}" if one is not None else ", got null" for one in value
    )
    return ApiError("invalid_request", f"{name} {problem}{got}", param=name)
