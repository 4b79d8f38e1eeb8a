"""The Redis driver's pure parts: URLs, errors, keys, transactions, and putting stream entries together."""

from __future__ import annotations

import builtins
import sys

import pytest
import redis.exceptions as raised
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.config import StoreAccess
from pdcore.errors import (
    AccessRefused,
    Compacted,
    ConfigError,
    LeaseGone,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from pdcore.registry.redis.connection import RedisLocation, open_redis, parse_redis_url, translate
from pdcore.registry.redis.entries import (
    SIDE,
    VIEW,
    Entry,
    Sequel,
    areas_of,
    prefix_bounds,
    read_entry,
    stored,
    under,
)
from pdcore.registry.redis.transaction import MAX_BYTES, committed, transaction_arguments
from pdcore.registry.store import (
    Absent,
    Change,
    Committed,
    Delete,
    LeaseId,
    ModRevisionIs,
    Put,
    Revision,
    Stored,
    ValueIs,
)

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("url", "location", "address"),
    [
        ("redis://a", RedisLocation("a", 6379, 0, False), "a:6379"),
        ("redis://a:1/", RedisLocation("a", 1, 0, False), "a:1"),
        ("rediss://a.b:1/15", RedisLocation("a.b", 1, 15, True), "a.b:1"),
        ("redis://[::1]/2", RedisLocation("::1", 6379, 2, False), "[::1]:6379"),
    ],
)
def test_a_url_says_where_a_redis_is(url: str, location: RedisLocation, address: str) -> None:
    assert parse_redis_url(url) == location
    assert location.address == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:1",
        "etcd://a",
        "redis://",
        "redis://:1",
        "redis://a:0",
        "redis://a:65536",
        "redis://a,b",
        "redis://a/x",
        "redis://a/1/2",
        "redis://a?db=1",
        "redis://::1",
        "redis://me:hunter2@a",
        "hunter2",
    ],
)
def test_a_url_that_cannot_work_is_one_sentence_naming_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--store / PDCORE_STORE: ") as refused:
        open_redis(StoreAccess(url=url, timeout_s=1), "store")
    with pytest.raises(ConfigError, match=r"^--redis / PDCORE_REDIS: "):
        open_redis(StoreAccess(url=url, timeout_s=1))
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_credentials_are_told_where_they_belong() -> None:
    with pytest.raises(ConfigError, match="use --redis-user and PDCORE_REDIS_PASSWORD"):
        parse_redis_url("redis://me:hunter2@a")
    with pytest.raises(
        ConfigError, match=r"^--redis-user / PDCORE_REDIS_USER: me needs PDCORE_REDIS_PASSWORD$"
    ):
        open_redis(StoreAccess(url="redis://a", timeout_s=1, user="me"))
    with pytest.raises(ConfigError, match=r"^--redis-ca / PDCORE_REDIS_CA: cannot read /nowhere: "):
        open_redis(StoreAccess(url="rediss://a", timeout_s=1, ca="/nowhere"))


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r"pip install 'pdcore\[redis\]'"):
        open_redis(StoreAccess(url="redis://a", timeout_s=1))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (raised.ConnectionError("Connection closed by server."), StoreUnavailable),
        (raised.TimeoutError("Timeout connecting to server"), StoreUnavailable),
        (builtins.TimeoutError(), StoreUnavailable),
        (OSError("no route"), StoreUnavailable),
        (raised.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable),
        (raised.ReadOnlyError("You can't write against a read only replica."), StoreUnavailable),
        (raised.ResponseError("BUSY Redis is busy running a script."), StoreUnavailable),
        (raised.ResponseError("Error running script: Script killed by user"), StoreUnavailable),
        (raised.ResponseError("UNBLOCKED force unblock from blocking operation"), StoreUnavailable),
        (raised.ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable),
        (raised.ClusterDownError("CLUSTERDOWN The cluster is down"), StoreUnavailable),
        (raised.MaxConnectionsError("Too many connections"), StoreUnavailable),
        (raised.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), StoreRefused),
        (raised.ResponseError("MISCONF Redis is configured to save RDB snapshots"), StoreRefused),
        (raised.ResponseError("unknown command"), StoreRefused),
        (raised.AuthenticationError("invalid username-password pair"), AccessRefused),
        (raised.NoPermissionError("this user has no permissions to run the 'get' command"), AccessRefused),
        (raised.ResponseError("ACL failure in script: User lacks permission"), AccessRefused),
        (raised.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), AccessRefused),
        (raised.ConnectionError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), AccessRefused),
        (raised.ConnectionError("[SSL: TLSV1_ALERT_UNKNOWN_CA]"), AccessRefused),
    ],
)
def test_every_fault_has_a_class(error: Exception, kind: type[StoreError]) -> None:
    assert type(translate(error, "a:1")) is kind


def test_a_fault_is_one_line_that_names_the_server() -> None:
    assert str(translate(raised.ResponseError("two\nlines"), "a:1")) == "redis at a:1: two lines"
    assert str(translate(builtins.TimeoutError(), "a:1")) == "redis at a:1: no answer in time"


@pytest.mark.parametrize(
    ("prefix", "areas"),
    [
        ("/pdcore/c/view/", (VIEW,)),
        ("/pdcore/c/view/instances/side/", (VIEW,)),
        ("/pdcore/c/side/", (SIDE,)),
        ("/pdcore/c/side/rooms/p", (SIDE,)),
        ("/pdcore/c/sid", (VIEW, SIDE)),
        ("/pdcore/c/side", (VIEW, SIDE)),
        ("/pdcore/c/vi", (VIEW,)),
        ("/pdcore/c/", (VIEW, SIDE)),
        ("/pdcore", (VIEW, SIDE)),
        ("/", (VIEW, SIDE)),
        ("", (VIEW, SIDE)),
        ("side", (VIEW,)),
    ],
)
def test_who_follows_a_prefix_reads_the_areas_that_can_hold_it(prefix: str, areas: tuple[str, ...]) -> None:
    assert areas_of(prefix) == areas


@few
@given(st.text(st.sampled_from("/asidev"), max_size=24), st.integers(0, 24))
def test_every_prefix_of_a_key_reads_the_key_s_area(key: str, length: int) -> None:
    area = areas_of(key + "/" * 4)[0]  # a whole key lies in one
    if len(areas_of(key)) == 1:
        assert areas_of(key) == (area,)
        assert area in areas_of(key[:length])


@few
@given(st.text(max_size=3), st.text(max_size=6))
def test_bounds_hold_exactly_the_keys_under_a_prefix(prefix: str, key: str) -> None:
    first, last = prefix_bounds(prefix)
    name = key.encode()
    within = prefix == "" or first[1:] <= name < last[1:]
    assert within == key.startswith(prefix)


def test_a_stored_entry_may_hold_any_bytes() -> None:
    assert stored(b"3 17 0 a b\n\0") == Stored(b"a b\n\0", 17, 3)
    assert stored(b"3 17 99 ") == Stored(b"", 17, 3, LeaseId(99))


def test_a_stream_entry_holds_puts_and_deletes() -> None:
    fields = {b"after": b"t 4", b"gone": b"/a\0/b", b"+/c": b"2 9 v w", b"+gone": b"5 0 "}
    assert read_entry((b"5-0", fields)) == Entry(
        5,
        b"t",
        4,
        (
            Change("/a", None),
            Change("/b", None),
            Change("/c", Stored(b"v w", 5, 2, LeaseId(9))),
            Change("gone", Stored(b"", 5, 5)),
        ),
    )


@pytest.mark.parametrize("entry", [b"", b"1 2 3", b"a b c d", b"\xff 2 0 v"])
def test_what_somebody_else_wrote_is_refused(entry: bytes) -> None:
    with pytest.raises(StoreRefused):
        stored(entry)
    for fields in (
        {},
        {b"after": entry},
        {b"after": b"t 1", b"+k": entry[:3]},
        {b"after": b"t 1", b"gone": b"\xff"},
    ):
        with pytest.raises(StoreRefused):
            read_entry((b"5-0", fields))


def test_a_transaction_is_a_flat_list() -> None:
    conditions = (Absent("a"), ValueIs("b", b"1"), ModRevisionIs("c", 7))
    writes = (Put("d", b"2", LeaseId(5)), Put("e", b""), Delete("f"))
    assert transaction_arguments(conditions, writes) == (
        *(3, "absent", "a", "", "value", "b", b"1", "revision", "c", 7),
        *(5, "d", b"2", 0, "e", b"", "-", "f", ""),
    )


def test_what_the_stream_cannot_hold_is_refused() -> None:
    with pytest.raises(StoreRefused, match="NUL"):
        transaction_arguments((), (Put("a\0b", b""),))
    with pytest.raises(StoreRefused, match="bytes"):
        transaction_arguments((), (Put("a", bytes(MAX_BYTES)),))


def test_an_answer_tells_how_a_transaction_went() -> None:
    assert committed([b"done", 4]) == Committed(True, 4)
    assert committed([b"refused", 4]) == Committed(False, 4)
    with pytest.raises(LeaseGone, match="lease 9 "):
        committed([b"gone", b"9"])


LIFE = b"life"
Shares = list[tuple[bool, bool]]
SHARES = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30)


def _streams(shares: Shares, gap: int = 0) -> tuple[list[Entry], list[Entry]]:
    """The two areas' entries of revisions from 2 on, each in one, both or neither; after ``gap`` comes a restart."""
    streams: tuple[list[Entry], list[Entry]] = ([], [])
    for number, share in enumerate(shares):
        revision = number + 2 + (1000 if gap and number >= gap else 0)
        for area, stream in enumerate(streams):
            if share[area]:
                after = stream[-1].revision if stream else 0
                stream.append(Entry(revision, LIFE, after, (Change(f"{area}/{revision}", None),)))
    return streams


def _read(stream: list[Entry], position: int, limit: int) -> list[Entry]:
    return [entry for entry in stream if entry.revision > position][:limit]


@few
@given(SHARES, st.integers(1, 4), st.integers(1, 30), st.integers(0, 30))
def test_areas_read_in_batches_come_out_as_whole_revisions_in_order(
    shares: Shares, limit: int, start: int, gap: int
) -> None:
    streams = _streams(shares, gap)
    sequel = Sequel(start, LIFE, start)
    seen: list[Revision] = []
    while batches := [batch for stream in streams if (batch := _read(stream, sequel.position, limit))]:
        seen += sequel.add(batches, limit)
    expected: dict[int, tuple[Change, ...]] = {}
    for entry in (*streams[0], *streams[1]):
        if entry.revision > start:
            expected[entry.revision] = expected.get(entry.revision, ()) + entry.changes
    assert seen == [Revision(revision, expected[revision]) for revision in sorted(expected)]


@few
@given(SHARES, st.integers(1, 4), st.integers(1, 30), st.data())
def test_what_was_trimmed_is_noticed(shares: Shares, limit: int, start: int, data: st.DataObject) -> None:
    streams = _streams(shares)
    trimmed = [data.draw(st.integers(0, len(stream))) for stream in streams]
    missing = any(
        entry.revision > start and kept < len(stream)
        for stream, kept in zip(streams, trimmed, strict=True)
        for entry in stream[:kept]
    )
    left = [stream[kept:] for stream, kept in zip(streams, trimmed, strict=True)]
    sequel = Sequel(start, LIFE, start)
    noticed = False
    try:
        while batches := [batch for stream in left if (batch := _read(stream, sequel.position, limit))]:
            sequel.add(batches, limit)
    except Compacted:
        noticed = True
    assert noticed == missing


def test_another_store_s_entries_are_not_taken_for_this_one_s() -> None:
    sequel = Sequel(4, b"new", 6)
    older = Entry(5, b"old", 4, (Change("a", None),))
    assert sequel.add([[older]], 10) == [Revision(5, older.changes)]
    with pytest.raises(StoreUnavailable):
        sequel.add([[Entry(7, b"old", 5, ())]], 10)
    with pytest.raises(StoreUnavailable):
        sequel.check_timeline(b"")


def test_a_store_that_was_never_written_to_gets_its_timeline_later() -> None:
    sequel = Sequel(1, b"", 1)
    assert sequel.add([[Entry(2, b"first", 0, (Change("a", None),))]], 10)
    with pytest.raises(StoreUnavailable):
        sequel.check_timeline(b"second")


def test_a_revision_is_cut_to_a_prefix() -> None:
    whole = Revision(5, (Change("/a/1", None), Change("/b/1", None)))
    assert under("/a/", whole) == Revision(5, (Change("/a/1", None),))
    assert under("/c/", whole) is None
