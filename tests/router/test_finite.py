"""Numbers that JSON does not have become null, and nothing else changes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.finite import with_nulls
from tests.support.odd_text import ODD

pytestmark = pytest.mark.unit

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)
VALUES = st.recursive(
    st.none()
    | st.floats()
    | st.integers()
    | st.text(ODD)
    | st.sampled_from(["NaN", '"-Infinity\\', "\\", '"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(ODD), inner, max_size=4),
    max_leaves=12,
)


def nulled(value: Any) -> Any:
    """What a client should read where an engine had ``value``."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [nulled(one) for one in value]
    return {name: nulled(one) for name, one in value.items()} if isinstance(value, dict) else value


@few
@given(VALUES)
def test_whatever_python_wrote_can_be_read_again_with_nulls(value: Any) -> None:
    read = json.loads(with_nulls(json.dumps(value).encode()), parse_constant=pytest.fail)
    assert read == nulled(value)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b'{"a": "NaN", "b":"\\"Infinity"}',
        b'data: {"t":"-Infinity is NaN"}\n\n',
        '{"ü":"\\\\"}'.encode(),
    ],
)
def test_what_has_none_outside_of_strings_stays_byte_for_byte(document: bytes) -> None:
    assert with_nulls(document) == document


def test_an_event_keeps_its_frame() -> None:
    event = b'data: {"logprobs":[-0.5,-Infinity, NaN,Infinity]}\r\n\r\n'
    assert with_nulls(event) == b'data: {"logprobs":[-0.5,null, null,null]}\r\n\r\n'
