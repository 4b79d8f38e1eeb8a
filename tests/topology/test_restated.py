"""A record that says another state and nothing else, against reading it."""

from __future__ import annotations

import json
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.topology.codec import MAX_VALUE_BYTES, decode, encode
from pdcore.topology.records import InstanceRecord, State
from pdcore.topology.restated import restated
from tests.support.fleet import instance_record

pytestmark = pytest.mark.unit

KEY: Final = "instances/p0"
STATES: Final = get_args(State)
BEFORE: Final = encode(instance_record())
RECORD: Final = instance_record()

words = st.sampled_from(
    [
        "serving",
        '"state"',
        '"state": "serving"',
        "state",
        ': "serving"',
        '{"state": "serving"}',
        "\\",
        "é",
        "x",
    ]
)
extras = st.dictionaries(
    st.sampled_from(["state ", "note", 'a"state"', "st\\ate", "inner"]),
    st.one_of(words, st.dictionaries(st.sampled_from(["state", "note"]), words, max_size=2)),
    max_size=3,
)


@pytest.mark.parametrize("now", STATES)
def test_another_state_is_seen(now: State) -> None:
    value = encode(RECORD._replace(state=now))
    expected = None if now == RECORD.state else RECORD._replace(state=now)
    assert restated(BEFORE, RECORD, value) == expected


@given(
    was=st.sampled_from(STATES),
    now=st.sampled_from(STATES),
    before=extras,
    after=extras,
    spaced=st.booleans(),
)
def test_whatever_is_said_means_what_reading_it_means(
    was: State, now: State, before: dict[str, object], after: dict[str, object], spaced: bool
) -> None:
    old, new = (
        json.dumps(
            {**json.loads(encode(RECORD._replace(state=state))), **extra},
            separators=(", ", ": ") if spaced else (",", ":"),
            ensure_ascii=False,
        ).encode()
        for state, extra in ((was, before), (now, after))
    )
    record = decode(KEY, old)
    assert isinstance(record, InstanceRecord)
    for value in (
        new,
        old.replace(b'"state": "serving"', b'"state": "draining"'),
        old.replace(b"serving", b"x"),
    ):
        assert restated(old, record, value) in (None, decode(KEY, value))


def test_another_members_state_is_not_the_records() -> None:
    record = RECORD._replace(extra={"inner": {"state": "serving"}})
    before = encode(record)
    assert restated(before, record, before.replace(b'"state": "serving"', b'"state": "draining"')) is None
    escaped = before.replace(b'"state": "serving", "tp', b'"st\\u0061te": "serving", "tp')
    assert decode(KEY, escaped) == record
    assert restated(escaped, record, escaped.replace(b'"state": "serving"', b'"state": "draining"')) is None


def test_a_value_that_grows_beyond_the_limit_is_read_and_refused() -> None:
    record = RECORD._replace(extra={"note": "n" * (MAX_VALUE_BYTES - len(BEFORE) - len(', "note": ""'))})
    before, after = encode(record), encode(record._replace(state="draining"))
    assert len(before) == MAX_VALUE_BYTES < len(after)
    assert restated(before, record, after) is None
