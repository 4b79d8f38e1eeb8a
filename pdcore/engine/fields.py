"""Reading a JSON object strictly: a field has the type and range it must have, or its name is in the refusal. Pure.

``null`` means "not given". A boolean is no integer, and digits in a string are no number.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        raise wrong(name, f"must be true or false, not {kind_of(value)}")
    return bool(value)


def integer(body: Body, name: str, low: int, high: int) -> int | None:
    """``body[name]`` within ``low … high``; a boolean, a float or digits in a string are not integers."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, f"must be an integer, not {kind_of(value)}")
    if not low <= value <= high:
        raise wrong(name, f"must be from {low} to {high}, not {shortened(value)}")
    return value


def number(body: Body, name: str, low: float, high: float) -> float | None:
    """``body[name]`` within ``low … high`` as a float."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(name, f"must be a number, not {kind_of(value)}")
    if not low <= value <= high:
        raise wrong(name, f"must be from {low:g} to {high:g}, not {shortened(value)}")
    return float(value)


def text(body: Body, name: str, longest: int) -> str | None:
    """``body[name]`` as a non-empty string of at most ``longest`` characters."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(name, f"must be a string, not {kind_of(value)}")
    if not 0 < len(value) <= longest:
        raise wrong(name, f"must have 1 to {longest} characters, not {len(value)}")
    return value


def shortened(value: object) -> str:
    """``value`` for a message: never more than 40 characters of what a client sent."""
    shown = str(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge integer"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def wrong(name: str, problem: str) -> ApiError:
    return ApiError("invalid_request", f"{name} {problem}", param=name)
