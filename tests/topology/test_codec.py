"""Records survive the keyspace; anything else under the prefix is refused with a sentence and without harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.topology import codec, keys
from pdcore.topology.codec import MAX_DEPTH, MAX_VALUE_BYTES, Rejected, decode, encode
from pdcore.topology.records import (
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    InstanceRecord,
    OrderRecord,
    RankRecord,
    Record,
    RouterRecord,
    StoreIdRecord,
)
from pdcore.topology.topology import Stored, build
from tests.support.fleet import COMPAT, instance_record, rank_record

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden" / "keyspace_v1.json"
few = settings(max_examples=30, deadline=None, derandomize=True, database=None)

RECORDS: dict[str, Record] = {
    "instances/p0": instance_record(),
    "instances/d0": instance_record("decode", extra={"zone": "a", "nested": {"list": [1, 2.5, None]}}),
    "instances/six": instance_record(url="http://[2001:db8::1]:8001", bootstrap_host="2001:db8::1"),
    "ranks/p0/0.0.0": rank_record(),
    "departures/p0": DepartureRecord(incarnation="inc-1", reason="died", by="registrar"),
    "routers/r0": RouterRecord(url="http://10.0.0.7:8000", admin_url="http://10.0.0.7:8000", version="0.1"),
    "groups/g/desired": DesiredRecord(active=3, candidate=4, deadline="soon", replicas={"prefill": 2}),
    "groups/g/spec": DocumentRecord(document={"model": "tiny", "roles": {"prefill": {"replicas": 2}}}),
    "groups/g/generations/3": DocumentRecord(document={"spec": {}}),
    "orders/p0": OrderRecord(kind="drain", incarnation="inc-1", sticky=False, by="cli"),
    "store_id": StoreIdRecord(store_id="5f2e"),
}


def test_a_refusal_is_a_sentence_that_a_terminal_can_show() -> None:
    assert str(Rejected(key="routers/r0", reason="is odd")) == "routers/r0 is not read: is odd"
    hostile = str(decode("instances/\x1b[2J\n" + "x" * 5000, b"{}"))
    assert hostile.isprintable()
    assert len(hostile) < 500


@pytest.mark.parametrize("key", RECORDS)
def test_a_record_reads_as_it_was_written(key: str) -> None:
    assert decode(key, encode(RECORDS[key])) == RECORDS[key]


@pytest.mark.parametrize("key", [key for key in RECORDS if key != "store_id"])
def test_values_are_one_line_of_versioned_json(key: str) -> None:
    value = encode(RECORDS[key])
    assert json.loads(value)["v"] == 1
    assert b"\n" not in value
    assert list(json.loads(value)) == sorted(json.loads(value))


def test_every_field_of_every_record_is_checked() -> None:
    """A field added to a record and not to its schema would be lost on the way."""
    for kind, schema in codec._SCHEMAS.items():
        assert [*schema, "extra"] == list(get_type_hints(kind)), kind
    assert {*codec._COMPAT, "extra"} == {field.name for field in fields(type(COMPAT))}


def test_fields_of_a_newer_version_are_kept_and_written_back() -> None:
    document = json.loads(encode(instance_record())) | {"rack": "r7", "compat": codec.compat_document(COMPAT)}
    document["compat"]["rope"] = {"kind": "yarn"}
    record = decode("instances/p0", json.dumps(document).encode())
    assert isinstance(record, InstanceRecord)
    assert (record.extra, record.compat.extra) == ({"rack": "r7"}, {"rope": {"kind": "yarn"}})
    assert json.loads(encode(record._replace(state="draining"))) == document | {"state": "draining"}


def test_an_own_field_wins_over_one_of_the_same_name_in_extra() -> None:
    assert decode("ranks/p0/0.0.0", encode(rank_record(extra={"rank_port": 1, "v": 9}))) == rank_record()


def test_a_hand_typed_store_id_counts() -> None:
    assert decode("store_id", b"5f2e") == StoreIdRecord(store_id="5f2e")
    assert isinstance(decode("store_id", b'"5f2e'), Rejected)
    assert isinstance(decode("store_id", b""), Rejected)


def test_optional_fields_may_be_left_out() -> None:
    document = json.loads(encode(instance_record("decode")))
    del document["bootstrap_host"], document["bootstrap_port"]
    assert decode("instances/d0", json.dumps(document).encode()) == instance_record("decode")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"not json", "is not JSON"),
        (b'{"v": 1} {"v": 1}', "is not JSON: Extra data"),
        (b"\xff\xfe{}", "is not UTF-8: invalid start byte at byte 0"),
        (b'{"v": 1, "a": "\xed\xa0\x80"}', "is not UTF-8"),
        (b'\xef\xbb\xbf{"v": 1}', "is not JSON"),
        (b"[]", "is not a JSON object but a list of 0"),
        (b"null", "is not a JSON object but null"),
        (b"true", "is not a JSON object but true"),
        (b"1" * 5000, "is not JSON"),
        (b'"' + b"x" * 500 + b'"', "is not a JSON object but '" + "x" * 60 + "'… (500 characters)"),
        (b"{}", "v: null is not known here, only 1"),
        (b'{"v": 2}', "v: 2 is not known here, only 1"),
        (b'{"v": true}', "v: true is not known here"),
        (b'{"v": 1.0}', "v: 1.0 is not known here"),
        (b'{"v": "1"}', "v: '1' is not known here"),
        (b'{"v": 1}', "incarnation is missing"),
        (b'{"v": 1, "v": 1}', "'v' is given twice"),
        (b'{"v": 1, "x": {"y": 1, "y": 2}}', "'y' is given twice"),
        (b'{"v": 1, "x": NaN}', "NaN is no JSON number"),
        (b'{"v": 1, "x": -Infinity}', "-Infinity is no JSON number"),
        (b'{"v": 1, "x": 1e999}', "'1e999' is no finite number"),
        (b'{"v": 1, "x": "\\ud800"}', "has a string with half a surrogate pair"),
        (b'{"v": 1, "\\udfff": 1}', "has a string with half a surrogate pair"),
        (b"[" * 60000, f"is nested deeper than {MAX_DEPTH}"),
        (b'{"a":' * 10000, f"is nested deeper than {MAX_DEPTH}"),
        (b'{"v": 1, "x": ' + b"[" * 40 + b"]" * 40 + b"}", f"is nested deeper than {MAX_DEPTH}"),
        (b" " * (MAX_VALUE_BYTES + 1), "is 65537 bytes long, more than 65536"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_what_is_no_versioned_object_is_refused(value: bytes, reason: str) -> None:
    found = decode("ranks/p0/0.0.0", value)
    assert isinstance(found, Rejected)
    assert found.reason.startswith(reason)
    assert len(found.reason) < 250


def test_many_repeated_names_are_refused_without_looking_at_each_pair() -> None:
    names = [f'"{n}": 0' for n in range(5000)] * 2
    value = "{" + ", ".join(names)[: MAX_VALUE_BYTES - 20] + ', "0": 1}'
    assert "is given twice" in _reason("ranks/p0/0.0.0", value.encode())


BAD_INSTANCE_FIELDS: list[tuple[str, object, str]] = [
    ("tp_size", 10**9, "tp_size: 1000000000 must be a whole number from 1 to 1024"),
    ("tp_size", 10**4000, "tp_size: 1" + "0" * 59 + " must be a whole number"),
    ("tp_size", 0, "tp_size: 0 must be"),
    ("tp_size", -1, "tp_size: -1 must be"),
    ("tp_size", True, "tp_size: true must be a whole number"),
    ("tp_size", 1.0, "tp_size: 1.0 must be a whole number"),
    ("tp_size", "1", "tp_size: '1' must be a whole number"),
    ("tp_size", None, "tp_size: null must be a whole number"),
    ("tp_size", [1], "tp_size: a list of 1 must be a whole number"),
    ("tp_size", {}, "tp_size: an object must be a whole number"),
    ("pp_size", 2, "pp_size: 2 must be a whole number from 1 to 1"),
    ("bootstrap_port", 0, "bootstrap_port: 0 must be a whole number from 1 to 65535"),
    ("bootstrap_port", 65536, "bootstrap_port: 65536 must be"),
    ("bootstrap_port", None, "bootstrap_host and bootstrap_port must be given together"),
    ("bootstrap_host", "0." * 3 + "0", "bootstrap_host: '0.0.0.0' is no address a peer can connect to"),
    ("bootstrap_host", "::", "bootstrap_host: '::' is no address a peer can connect to"),
    ("bootstrap_host", "::ffff:0:0", "bootstrap_host: '::ffff:0:0' is no address a peer can connect to"),
    ("bootstrap_host", "0:0::0", "bootstrap_host: '0:0::0' is no address a peer can connect to"),
    ("bootstrap_host", "224.0.0.1", "bootstrap_host: '224.0.0.1' is no address a peer can connect to"),
    ("bootstrap_host", "255.255.255.255", "bootstrap_host: '255.255.255.255' is no address a peer"),
    ("bootstrap_host", "[::1]", "bootstrap_host: '[::1]' is no IP address"),
    ("bootstrap_host", "0", "bootstrap_host: '0' is no IP address"),
    ("bootstrap_host", "0x7f.1", "bootstrap_host: '0x7f.1' is no IP address"),
    ("bootstrap_host", "1.2.3", "bootstrap_host: '1.2.3' is no IP address"),
    ("bootstrap_host", "", "bootstrap_host: '' must be an IP address or a host name"),
    ("bootstrap_host", "*", "bootstrap_host: '*' must be an IP address or a host name"),
    ("bootstrap_host", "a b", "bootstrap_host: 'a b' must be an IP address or a host name"),
    ("bootstrap_host", "-a.b", "bootstrap_host: '-a.b' must be an IP address or a host name"),
    ("bootstrap_host", "x" * 254, "bootstrap_host: '" + "x" * 60 + "'… (254 characters) must be"),
    ("url", "ftp://h:1", "url: 'ftp://h:1' must be http(s)://host:port"),
    ("url", "http://u:p@h:1", "url: a URL with a user in it must be http(s)://host:port without credentials"),
    ("url", "http://h:0", "url: 'http://h:0' has port 0"),
    ("url", "http://h:65536", "url: 'http://h:65536' must be a URL: Port out of range"),
    ("url", "http://0.0." + "0.0:80", "url: '0.0.0.0' is no address a peer can connect to"),
    ("url", "http://[::]:80", "url: '::' is no address a peer can connect to"),
    ("url", "http://[::1:80", "url: 'http://[::1:80' must be a URL"),
    ("url", "http://h:1/?q", "url: 'http://h:1/?q' must be"),
    ("url", "http://", "url: null must be an IP address or a host name"),
    ("url", "http://h:1/\n", "url: 'http://h:1/\\n' must be a URL"),
    ("url", 7, "url: 7 must be a URL"),
    ("incarnation", "a/b", "incarnation: 'a/b' must be 1 to 128 of"),
    ("incarnation", "..", "incarnation: '..' must be 1 to 128 of"),
    ("incarnation", "a\n", "incarnation: 'a\\n' must be 1 to 128 of"),
    ("role", "router", "role: 'router' must be one of prefill, decode, unified"),
    ("role", ["prefill"], "role: a list of 1 must be one of prefill, decode, unified"),
    ("state", "stopped", "state: 'stopped' must be one of starting, serving, draining"),
    ("group", "a b", "group: 'a b' must be 1 to 128 of"),
    ("generation", 1, "generation: 1 must be 0 without a group"),
    ("models", [], "models: a list of 0 must be a list of 1 to 64 items"),
    ("models", "tiny", "models: 'tiny' must be a list of 1 to 64 items"),
    ("models", ["a", "a"], "models: a list of 2 names the same item twice"),
    ("models", ["a", 1], "models: 1 must be non-empty text"),
    ("models", ["\x1b[31m"], "models: '\\x1b[31m' has unprintable characters"),
    ("machine", "m" * 257, "machine: '" + "m" * 60 + "'… (257 characters) is longer than 256"),
    ("compat", None, "compat: null must be an object"),
    ("compat", {}, "compat: model_fingerprint is missing"),
    ("kv_tokens", -1, "kv_tokens: -1 must be"),
]


@pytest.mark.parametrize(("field", "value", "reason"), BAD_INSTANCE_FIELDS)
def test_a_wrong_field_is_named_with_its_value(field: str, value: object, reason: str) -> None:
    document = codec.document(instance_record()) | {field: value}
    assert _reason("instances/p0", json.dumps(document).encode()).startswith(reason)


def test_a_layout_of_many_small_sizes_is_refused_too() -> None:
    record = instance_record(dp_size=1024, tp_size=1024)
    assert _reason("instances/p0", encode(record)) == (
        "dp_size x cp_size x tp_size: 1048576 is more than 4096"
    )


def test_a_prefill_needs_a_bootstrap_address() -> None:
    record = instance_record(bootstrap_host=None, bootstrap_port=None)
    assert _reason("instances/p0", encode(record)) == "bootstrap_host: a prefill instance must have one"


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "host-a", "a_b.example.com"]
)
def test_addresses_of_both_families_and_names_are_accepted(host: str) -> None:
    record = rank_record(rank_ip=host)
    assert decode("ranks/p0/0.0.0", encode(record)) == record


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (
            OrderRecord(kind="end", incarnation=None, sticky=True, by=""),
            "incarnation: an order to end must name one",
        ),
        (
            OrderRecord(kind="drain", incarnation=None, sticky=False, by=""),
            "incarnation: null only in a sticky order",
        ),
    ],
)
def test_an_order_says_whom_it_binds(order: OrderRecord, reason: str) -> None:
    assert _reason("orders/p0", encode(order)) == reason


@pytest.mark.parametrize(
    "key",
    [
        "",
        "instances",
        "instances/",
        "instances/a/b",
        "instances/a b",
        "instances/..",
        "instances/" + "x" * 129,
        "ranks/p0",
        "ranks/p0/0.0",
        "ranks/p0/0.0.00",
        "ranks/p0/0.0.-1",
        "ranks/p0/0.0.٣",
        "ranks/p0/0.0.0\n",
        "groups/g",
        "groups/g/generations/01",
        "groups//spec",
        "store_id/",
        "unknown/x",
    ],
)
def test_a_key_outside_the_keyspace_is_refused(key: str) -> None:
    assert decode(key, encode(rank_record())) == Rejected(key=key, reason="is no key of this keyspace")


@pytest.mark.parametrize("key", RECORDS)
def test_a_key_made_is_a_key_parsed(key: str) -> None:
    name = keys.parse(key)
    assert name is not None
    made: dict[str, Callable[[], str]] = {
        "instances": lambda: keys.instance(name.owner),
        "ranks": lambda: keys.rank(keys.RankId(name.owner, name.position or keys.RankPosition(9, 9, 9))),
        "departures": lambda: keys.departure(name.owner),
        "routers": lambda: keys.router(name.owner),
        "orders": lambda: keys.order(name.owner),
        "spec": lambda: keys.spec(name.owner),
        "desired": lambda: keys.desired(name.owner),
        "generations": lambda: keys.generation(name.owner, name.generation or -1),
        "store_id": lambda: keys.STORE_ID,
    }
    assert made[name.family]() == key


def test_a_compat_block_survives_the_way_from_rank_to_leader() -> None:
    assert codec.compat_from(codec.compat_document(COMPAT)) == COMPAT
    with pytest.raises(ValueError, match="layers: 0 must be"):
        codec.compat_from({**codec.compat_document(COMPAT), "layers": 0})


def test_the_golden_keyspace_reads_for_ever() -> None:
    """Values that releases have written. Add to the file, never change what is there."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    listed = {
        key: Stored(json.dumps(value).encode(), revision)
        for revision, (key, value) in enumerate(golden["keys"].items(), start=1)
    }
    topology = build(listed, len(listed))
    assert dict(topology.rejected) == {}
    for key, stored in listed.items():
        record = decode(key, stored.value)
        assert not isinstance(record, Rejected), record
        assert json.loads(encode(record)) == golden["keys"][key]
    assert topology.store_id == golden["expect"]["store_id"]
    assert {i: list(x.why_not_ready) for i, x in topology.instances.items()} == golden["expect"][
        "why_not_ready"
    ]
    assert [i for i, x in sorted(topology.instances.items()) if x.draining] == golden["expect"]["draining"]
    assert {g: topology.active_generation(g) for g in topology.groups} == golden["expect"]["active"]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
some_keys = st.sampled_from([*RECORDS, "unknown/x"]) | st.text(max_size=12)
some_values = st.binary(max_size=64) | json_values.map(lambda value: json.dumps(value).encode())


@few
@given(key=some_keys, value=some_values)
def test_garbage_is_refused_and_never_raises(key: str, value: bytes) -> None:
    found = decode(key, value)
    if not isinstance(found, Rejected):
        assert decode(key, encode(found)) == found


@few
@given(key=st.sampled_from([k for k in RECORDS if k != "store_id"]), data=st.data())
def test_a_record_with_any_field_replaced_reads_or_is_refused(key: str, data: st.DataObject) -> None:
    document = codec.document(RECORDS[key])
    field = data.draw(st.sampled_from(sorted(document)))
    value = json.dumps(document | {field: data.draw(json_values)}).encode()
    found = decode(key, value)
    if isinstance(found, Rejected):
        assert found.key == key
        assert found.reason
    else:
        assert decode(key, encode(found)) == found


@few
@given(cut=st.integers(0, 2000), key=st.sampled_from([*RECORDS]))
def test_a_truncated_value_is_refused(cut: int, key: str) -> None:
    value = encode(RECORDS[key])
    if key != "store_id":
        assert isinstance(decode(key, value[: cut % len(value)]), Rejected)


def _reason(key: str, value: bytes) -> str:
    found = decode(key, value)
    assert isinstance(found, Rejected)
    assert found.key == key
    return found.reason


def test_the_wrong_kind_of_record_under_a_key_is_refused() -> None:
    assert _reason("instances/p0", encode(rank_record())) == "role is missing"
    assert isinstance(decode("ranks/p0/0.0.0", encode(instance_record())), Rejected)
    assert isinstance(decode("ranks/p0/0.0.0", encode(rank_record())), RankRecord)
