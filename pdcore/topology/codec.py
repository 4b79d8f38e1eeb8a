"""Records as JSON values of the keyspace, and back.

Reading is total: whatever lies under the prefix becomes a record or a :class:`Rejected` that says why. It is strict
(a boolean is no number, every field is bounded, exactly one known ``v``) where a value is acted on, and keeps what it
does not know in ``extra``, which writing merges back: what was read and written again reads the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pdcore.topology import fields, keys
from pdcore.topology.fields import Check, Wrong, shown
from pdcore.topology.records import (
    NOTHING,
    VERSION,
    Compat,
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    InstanceRecord,
    Json,
    OrderRecord,
    RankRecord,
    Record,
    RouterRecord,
    StoreIdRecord,
)

MAX_VALUE_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 32
MAX_SIZE: Final = 1024
MAX_WORLD_SIZE: Final = 4096
_SHOWN_KEY_CHARS: Final = 400
_BIG: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The newest value of ``key`` is no record; ``reason`` is a sentence for the operator."""

    key: str
    reason: str

    def __str__(self) -> str:
        """Both in one sentence, which a terminal can show whatever the key is."""
        key = self.key if self.key.isprintable() else repr(self.key)[1:-1]
        return f"{key[:_SHOWN_KEY_CHARS]} is not read: {self.reason}"


_size: Final = fields.whole(1, MAX_SIZE)
_count: Final = fields.whole(0, _BIG)
_positive: Final = fields.whole(1, _BIG)
_word: Final = fields.text(128)
_COMPAT: Final[Mapping[str, Check]] = {
    "model_fingerprint": fields.text(256),
    "context_length": _positive,
    "kv_dtype": _word,
    "block_sizes": fields.many(fields.whole(1, 1 << 16), 1, 16),
    "kv_layout": _word,
    "attention": _word,
    "layers": fields.whole(1, 1 << 16),
    "kv_heads": fields.whole(1, 1 << 16),
    "head_dim": fields.whole(1, 1 << 16),
    "transfer_engines": fields.many(_word, 1, 16),
    "wire": _count,
    "layout": _count,
}
_INSTANCE: Final[Mapping[str, Check]] = {
    "incarnation": fields.name,
    "role": fields.one_of("prefill", "decode", "unified"),
    "group": fields.group_name,
    "generation": _count,
    "models": fields.many(fields.text(256), 1, 64),
    "url": fields.url,
    "bootstrap_host": fields.optional(fields.host),
    "bootstrap_port": fields.optional(fields.port),
    "protocol": _word,
    "dp_size": _size,
    "cp_size": _size,
    "tp_size": _size,
    "pp_size": fields.whole(1, 1),
    "compat": lambda value: _shared_compat(fields.opaque(value)),
    "kv_tokens": fields.whole(0, 1 << 48),
    "block_size": fields.whole(1, 1 << 16),
    "machine": fields.text(256),
    "boot_id": fields.text(128, empty=True),
    "pid": _count,
    "state": fields.one_of("starting", "serving", "draining"),
}
_RANK: Final[Mapping[str, Check]] = {
    "incarnation": fields.name,
    "rank_ip": fields.host,
    "rank_port": fields.optional(fields.port),
    "transfer": fields.opaque,
    "device": _word,
    "machine": fields.text(256),
}
_DEPARTURE: Final[Mapping[str, Check]] = {
    "incarnation": fields.name,
    "reason": fields.one_of("left", "died", "silent", "drained", "ordered"),
    "by": fields.text(256, empty=True),
}
_ROUTER: Final[Mapping[str, Check]] = {
    "url": fields.url,
    "admin_url": fields.url,
    "version": _word,
}
_DESIRED: Final[Mapping[str, Check]] = {
    "active": _count,
    "candidate": fields.optional(_count),
    "deadline": fields.optional(_word),
    "replicas": fields.table(fields.name, fields.whole(0, 1 << 16), 64),
}
_ORDER: Final[Mapping[str, Check]] = {
    "kind": fields.one_of("drain", "undrain", "end"),
    "incarnation": fields.optional(fields.name),
    "sticky": fields.truth,
    "by": fields.text(256, empty=True),
}
_STORE_ID: Final[Mapping[str, Check]] = {"store_id": fields.name}
_NO_BOOTSTRAP: Final = frozenset({"nixl", "mooncake", "ascend-layerwise"})
"""Handshakes of foreign engines, whose prefills may have no bootstrap address or one that the protocol knows by itself."""
_MAY_BE_ABSENT: Final = frozenset({"bootstrap_host", "bootstrap_port", "candidate", "deadline"})

_MOST_COMPATS: Final = 64
_COMPATS: Final[dict[str, Compat]] = {}
"""What was read before, by how it was said; forgotten whole when it grows."""

# The fields of each in the record's own order: a record is made of them by position.
_SCHEMAS: Final[Mapping[type, Mapping[str, Check]]] = {
    InstanceRecord: _INSTANCE,
    RankRecord: _RANK,
    DepartureRecord: _DEPARTURE,
    RouterRecord: _ROUTER,
    DesiredRecord: _DESIRED,
    OrderRecord: _ORDER,
}
_TYPES: Final[Mapping[keys.Family, type]] = {
    "instances": InstanceRecord,
    "ranks": RankRecord,
    "departures": DepartureRecord,
    "routers": RouterRecord,
    "desired": DesiredRecord,
    "orders": OrderRecord,
}


def encode(record: Record) -> bytes:
    """The value to store: one line of JSON with sorted names, readable with ``etcdctl get``."""
    if isinstance(record, StoreIdRecord):
        return json.dumps(record.store_id).encode()
    line = json.dumps(document(record), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return line.encode()


def document(record: Record) -> dict[str, Json]:
    """``record`` as the JSON object that is stored, ``v`` included."""
    if isinstance(record, DocumentRecord):
        return {**record.document, "v": VERSION}
    if isinstance(record, StoreIdRecord):
        return {"store_id": record.store_id, "v": VERSION}
    known = {name: _plain(getattr(record, name)) for name in _SCHEMAS[type(record)]}
    return {**record.extra, **known, "v": VERSION}


def compat_document(compat: Compat) -> dict[str, Json]:
    """``compat`` as a JSON object; :func:`compat_from` reads it."""
    return {**compat.extra, **{name: _plain(getattr(compat, name)) for name in _COMPAT}}


def compat_from(value: Mapping[str, object]) -> Compat:
    """Read :func:`compat_document`'s object. Raises ValueError with a sentence naming the field."""
    known, extra = _read(value, _COMPAT)
    return Compat(**dict(zip(_COMPAT, known, strict=True)), extra=extra)


def _shared_compat(value: Mapping[str, object]) -> Compat:
    """``compat_from(value)``, one object for all instances that say the same: a fleet has few of them."""
    said = repr(value)  # as objects, true would equal 1
    compat = _COMPATS.get(said)
    if compat is None:
        compat = compat_from(value)
        if len(_COMPATS) >= _MOST_COMPATS:
            _COMPATS.clear()
        _COMPATS[said] = compat
    return compat


def decode(key: str, value: bytes) -> Record | Rejected:
    """The record stored under ``key`` (relative to the view), or why it is none. Never raises."""
    return decode_named(key, keys.parse(key), value)


def decode_named(key: str, name: keys.Name | None, value: bytes) -> Record | Rejected:
    """:func:`decode` for a key that has been taken apart already."""
    if name is None:
        return Rejected(key=key, reason="is no key of this keyspace")
    try:
        return _record(name, value)
    except RecursionError:
        return Rejected(key=key, reason=f"is nested deeper than {MAX_DEPTH}")
    except ValueError as wrong:
        return Rejected(key=key, reason=str(wrong))


def _record(name: keys.Name, value: bytes) -> Record:
    if len(value) > MAX_VALUE_BYTES:
        raise Wrong(f"is {len(value)} bytes long, more than {MAX_VALUE_BYTES}")
    if name.family == "store_id":
        return StoreIdRecord(store_id=fields.name(_store_id(value)))
    found = _json_object(value)
    version = found.pop("v", None)
    if type(version) is not int or version != VERSION:
        raise Wrong(f"v: {shown(version)} is not known here, only {VERSION}")
    if name.family in {"spec", "generations"}:
        return DocumentRecord(document=MappingProxyType(found))
    record_type = _TYPES[name.family]
    known, extra = _read(found, _SCHEMAS[record_type])
    record: Record = record_type(*known, extra)
    _check_whole(record)
    return record


def _store_id(value: bytes) -> str:
    """A JSON string, or the bare id for a hand that typed it with ``etcdctl put``."""
    text = _text(value)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _check_whole(record: Record) -> None:
    """What no single field can tell."""
    if isinstance(record, InstanceRecord):
        if record.world_size > MAX_WORLD_SIZE:
            raise Wrong(f"dp_size x cp_size x tp_size: {record.world_size} is more than {MAX_WORLD_SIZE}")
        if (record.bootstrap_host is None) != (record.bootstrap_port is None):
            raise Wrong("bootstrap_host and bootstrap_port must be given together")
        if (
            record.role == "prefill"
            and record.bootstrap_host is None
            and record.protocol not in _NO_BOOTSTRAP
        ):
            raise Wrong("bootstrap_host: a prefill instance must have one")
        if record.group == "" and record.generation != 0:
            raise Wrong(f"generation: {record.generation} must be 0 without a group")
    if isinstance(record, OrderRecord) and record.incarnation is None:
        if record.kind == "end":
            raise Wrong("incarnation: an order to end must name one")
        if not record.sticky:
            raise Wrong("incarnation: null only in a sticky order")


def _read(found: Mapping[str, object], schema: Mapping[str, Check]) -> tuple[list[Any], Any]:
    """The values of ``schema``'s fields in its order, and what else there is."""
    try:
        known, absent = [check(found[name]) for name, check in schema.items()], 0
    except (KeyError, Wrong):
        known, absent = _read_each(found, schema)
    if len(found) == len(schema) - absent:
        return known, NOTHING
    return known, MappingProxyType({name: value for name, value in found.items() if name not in schema})


def _read_each(found: Mapping[str, object], schema: Mapping[str, Check]) -> tuple[list[Any], int]:
    """The same field by field, with what may be absent, how much of that is, and which field is wrong."""
    known: list[Any] = []
    absent = 0
    for name, check in schema.items():
        value = found.get(name)
        if value is None and name not in found:
            if name not in _MAY_BE_ABSENT:
                raise Wrong(f"{name} is missing")
            absent += 1
        try:
            known.append(check(value))
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
    return known, absent


def _plain(value: object) -> Any:
    if isinstance(value, Compat):
        return compat_document(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise Wrong(f"is not UTF-8: {wrong.reason} at byte {wrong.start}") from None


def _json_object(value: bytes) -> dict[str, Any]:
    line = _text(value)
    try:
        found = _JSON.decode(line)
    except Wrong:
        raise
    except ValueError as wrong:
        raise Wrong(f"is not JSON: {wrong}") from None
    if not isinstance(found, dict):
        raise Wrong(f"is not a JSON object but {shown(found)}")
    if line.count("{") + line.count("[") > MAX_DEPTH:
        _check_depth(found)
    if "\\u" in line:
        _check_characters(found)
    return found


def _check_depth(found: object) -> None:
    """Later readers may recurse; nobody nests this deep on purpose."""
    level: list[object] = [found]
    for _ in range(MAX_DEPTH):
        level = [item for nested in level for item in _items(nested)]
        if not level:
            return
    raise Wrong(f"is nested deeper than {MAX_DEPTH}")


def _items(nested: object) -> list[object]:
    inner = nested.values() if isinstance(nested, dict) else nested if isinstance(nested, list) else ()
    return [item for item in inner if isinstance(item, dict | list)]


def _check_characters(found: object) -> None:
    """Half of a surrogate pair can be escaped in JSON but not written as UTF-8 again."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Wrong("has a string with half a surrogate pair") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Wrong(f"{shown(_first_repeated(pairs))} is given twice")
    return found


def _first_repeated(pairs: list[tuple[str, object]]) -> str | None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    return None


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Wrong(f"{shown(digits)} is no finite number")
    return number


def _no_constant(literal: str) -> float:
    raise Wrong(f"{literal} is no JSON number")


_JSON: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_no_constant)
