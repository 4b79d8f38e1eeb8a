"""What a field of a group spec may hold: how it is read, and how JSON Schema says so. Pure.

Reading never stops at the first problem: each is a finding in the list that is passed along, and the value is then None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import date
from typing import Any, Final, Protocol

from pdcore.config.spelling import closest
from pdcore.group.finding import Finding
from pdcore.topology.records import Json

MAX_TEXT: Final = 8192
MAX_ITEMS: Final = 512
_BROKEN: Final = object()
_AS_LIST: Final = f"write a list: an item per line behind a dash, at most {MAX_ITEMS}"
_AS_MAPPING: Final = f"write a mapping: a line with NAME: VALUE for each, at most {MAX_ITEMS}"

Problems = list[Finding]


class Kind(Protocol):
    """One kind of value."""

    def read(self, value: object, path: str, problems: Problems) -> Any:
        """The typed value, or None after adding to ``problems``."""

    def schema(self) -> dict[str, Json]:
        """The same as JSON Schema."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string. ``words`` also takes a whole number for the text it is written as."""

    pattern: str | None = None
    says: str = "a text"
    words: bool = False
    empty: bool = False

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        if self.words and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            _wrong(problems, path, value, self.says, remedy=_quoted(value))
            return None
        if len(value) > MAX_TEXT or "\0" in value or (not self.empty and not value.strip()):
            _wrong(problems, path, value, f"{self.says} of 1 to {MAX_TEXT} characters")
            return None
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            _wrong(problems, path, value, self.says)
            return None
        return value

    def schema(self) -> dict[str, Json]:
        made: dict[str, Json] = {"type": ["string", "integer"] if self.words else "string"}
        if self.pattern is not None:
            made["pattern"] = f"^(?:{self.pattern})$"
        return made | {"maxLength": MAX_TEXT} | ({} if self.empty else {"minLength": 1})


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words. ``fold`` heeds no case, as in ``vLLM``."""

    words: tuple[str, ...]
    fold: bool = False
    code: str = "wrong_value"

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        folded = value.lower() if self.fold and isinstance(value, str) else value
        if folded not in self.words:
            _wrong(problems, path, value, f"one of {', '.join(self.words)}", code=self.code)
            return None
        return str(folded)

    def schema(self) -> dict[str, Json]:
        if not self.fold:
            return {"enum": list(self.words)}
        letters = (
            "".join(f"[{c.upper()}{c}]" if c.isalpha() else re.escape(c) for c in word) for word in self.words
        )
        return {"type": "string", "pattern": f"^(?:{'|'.join(letters)})$"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds; ``why`` tells what to do beyond them."""

    low: int
    high: int
    why: str = ""

    def read(self, value: object, path: str, problems: Problems) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            _wrong(problems, path, value, "a whole number")
            return None
        if not self.low <= value <= self.high:
            problems.append(
                Finding(
                    code="out_of_range",
                    path=path,
                    message=f"{_short(value)} is not from {self.low} to {self.high}",
                    remedy=self.why or f"write a number from {self.low} to {self.high}",
                    values={"given": _short(value), "lowest": self.low, "highest": self.high},
                )
            )
            return None
        return value

    def schema(self) -> dict[str, Json]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A number; what it means decides what is too small."""

    def read(self, value: object, path: str, problems: Problems) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            _wrong(problems, path, value, "a number")
            return None
        return float(value)

    def schema(self) -> dict[str, Json]:
        return {"type": "number"}


@dataclass(frozen=True, slots=True)
class Switch:
    """true or false."""

    def read(self, value: object, path: str, problems: Problems) -> bool | None:
        if not isinstance(value, bool):
            _wrong(problems, path, value, "true or false")
            return None
        return value

    def schema(self) -> dict[str, Json]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Items:
    """A list, read as a tuple. A record in it is named in paths by what its ``name`` says."""

    kind: Kind

    def read(self, value: object, path: str, problems: Problems) -> tuple[Any, ...] | None:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            long = f"a list of {len(value)} items" if isinstance(value, list) else None
            _wrong(problems, path, value, f"a list of at most {MAX_ITEMS} items", remedy=_AS_LIST, said=long)
            return None
        places = _places(value, path)
        read = [self.kind.read(item, place, problems) for item, place in zip(value, places, strict=True)]
        return tuple(read)

    def schema(self) -> dict[str, Json]:
        return {"type": "array", "items": self.kind.schema(), "maxItems": MAX_ITEMS}


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from names to values of one kind. ``names`` is what a name must match."""

    kind: Kind
    names: str | None = None

    def read(self, value: object, path: str, problems: Problems) -> dict[str, Any] | None:
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            what = "a text" if isinstance(value, str) else shown(value)  # which may hold a secret
            _wrong(
                problems,
                path,
                value,
                f"a mapping of at most {MAX_ITEMS} names",
                remedy=_AS_MAPPING,
                said=what,
            )
            return None
        for key in value:
            if not isinstance(key, str):
                _wrong(problems, path, key, "a name, which is a text")
            elif self.names is not None and re.fullmatch(self.names, key) is None:
                _wrong(problems, path, key, "a name")
        return {
            key: self.kind.read(held, f"{path}.{key}", problems)
            for key, held in value.items()
            if isinstance(key, str)
        }

    def schema(self) -> dict[str, Json]:
        named: dict[str, Json] = (
            {} if self.names is None else {"propertyNames": {"pattern": f"^(?:{self.names})$"}}
        )
        bounded: dict[str, Json] = {"additionalProperties": self.kind.schema(), "maxProperties": MAX_ITEMS}
        return {"type": "object"} | bounded | named


@dataclass(frozen=True, slots=True)
class Anything:
    """Whatever JSON can say; YAML's dates and bytes cannot."""

    def read(self, value: object, path: str, problems: Problems) -> Json:
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, int | float) and _is_finite(value):
            return value
        if isinstance(value, list):
            return [self.read(item, f"{path}[{n}]", problems) for n, item in enumerate(value)]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: self.read(item, f"{path}.{key}", problems) for key, item in value.items()}
        _wrong(problems, path, value, "a text, a number, a list, or a mapping from texts (quote dates)")
        return None

    def schema(self) -> dict[str, Json]:
        return {}


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping with the fields of ``type``. ``elsewhere`` are keys other systems have here, and what to do instead."""

    type: type
    elsewhere: tuple[tuple[str, str], ...] = ()

    def read(self, value: object, path: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            _wrong(problems, path, value, "a mapping", remedy=_AS_MAPPING)
            return None
        before = len(problems)
        known = {one.name: one for one in declared(self.type)}
        for key in value:
            if key not in known:
                problems.append(self._unknown(_key(key), path, known))
        read = {name: self._field(one, value, path, problems) for name, one in known.items()}
        if len(problems) > before:
            return None
        return self.type(**{name: held for name, held in read.items() if held is not _BROKEN})

    def schema(self) -> dict[str, Json]:
        known = declared(self.type)
        return {
            "type": "object",
            "description": (self.type.__doc__ or "").partition("\n")[0],
            "properties": {one.name: _field_schema(one) for one in known},
            "required": [one.name for one in known if _is_required(one)],
            "additionalProperties": False,
        }

    def _field(self, one: Field[Any], value: Mapping[object, object], path: str, problems: Problems) -> Any:
        given = value.get(one.name)
        place = f"{path}.{one.name}" if path else one.name
        if given is not None:
            return one.metadata["kind"].read(given, place, problems)
        if _is_required(one):
            problems.append(
                Finding(
                    code="missing_key",
                    path=place,
                    message="is missing",
                    remedy=f"write it: {one.metadata['help']}",
                )
            )
        return _BROKEN

    def _unknown(self, key: str, path: str, known: Iterable[str]) -> Finding:
        place = f"{path}.{key}" if path else key
        instead = dict(self.elsewhere).get(key)
        remedy = instead or f"remove it; known here: {', '.join(known)}"
        message = f"there is no key {key!r} here{'' if instead else closest(key, known)}"
        return Finding(code="unknown_key", path=place, message=message, remedy=remedy)


def says(kind: Kind, help: str) -> dict[str, Any]:
    """The metadata that makes a dataclass field one of a spec: its kind and one sentence about it."""
    return {"kind": kind, "help": help}


def declared(record: type) -> tuple[Field[Any], ...]:
    """The fields of ``record`` that stand in a spec."""
    return tuple(one for one in fields(record) if "kind" in one.metadata)


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _field_schema(one: Field[Any]) -> dict[str, Json]:
    made: dict[str, Json] = one.metadata["kind"].schema()
    if not _is_required(one) and made:
        made = {"anyOf": [made, {"type": "null"}]}
    said: dict[str, Json] = {"description": one.metadata["help"]}
    if one.default is not MISSING and one.default is not None:
        said["default"] = one.default
    return said | made


def _places(items: list[object], path: str) -> list[str]:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    alone = [isinstance(name, str) and names.count(name) == 1 for name in names]
    return [
        f"{path}.{name}" if unique else f"{path}[{index}]"
        for index, (name, unique) in enumerate(zip(names, alone, strict=True))
    ]


def _key(key: object) -> str:
    """A key as the file has it."""
    if isinstance(key, str):
        return str(_short(key))
    return "null" if key is None else shown(key)


def _is_finite(value: float) -> bool:
    """Whether every program that reads JSON will read it as it is."""
    return -(2.0**63) < value < 2.0**63


def _short(value: object) -> Json:
    """The value if it is short and JSON, else what it is: nobody wants to read a whole list in a message."""
    if isinstance(value, str):
        return value if len(value) <= 64 else f"{value[:63]}…"
    if value is None or isinstance(value, bool) or (isinstance(value, int | float) and _is_finite(value)):
        return value
    return shown(value)


def shown(value: object) -> str:
    """``value`` in a sentence, in the words of the file's format."""
    if isinstance(value, str):
        return repr(_short(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, word in _KINDS:
        if isinstance(value, kind):
            return word
    if isinstance(value, int | float):
        return str(value) if _is_finite(value) else "a number that JSON has not"
    return "a value that JSON has not"


_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (type(None), "nothing"),
    (dict, "a mapping"),
    (list, "a list"),
    (date, "a date"),
    (bytes, "bytes"),
)


def _wrong(
    problems: Problems,
    path: str,
    value: object,
    wanted: str,
    *,
    code: str = "wrong_value",
    remedy: str = "",
    said: str | None = None,
) -> None:
    """``said`` is told instead of the value."""
    problems.append(
        Finding(
            code=code,
            path=path,
            message=f"{said or shown(value)} is not {wanted}",
            remedy=remedy or f"write {wanted}",
            values={"given": said or _short(value)},
        )
    )


def _quoted(value: object) -> str:
    """What to do where YAML made something else of what was to be a text; empty where that is not so."""
    if isinstance(value, bool | date):
        return "put it in quotes, so that it stays the text that it looks like"
    if isinstance(value, int | float):
        return f'put it in quotes, like "{value}": without them it is a number, and 0.30 would be 0.3'
    return ""
