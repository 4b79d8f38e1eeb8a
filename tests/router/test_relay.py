"""Whole events from any cut, bytes untouched; what an event is; nothing of a tail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import ApiError
from pdcore.router.relay import (
    EventCutter,
    EventTooLarge,
    StreamReader,
    error_event,
    error_object,
    event_data,
    goes_on,
    rename_room,
    rename_room_in_event,
)

pytestmark = pytest.mark.unit

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)
LINES = st.sampled_from(
    [b"data: {}", b"data:x", b": ping", b"id: 7", b"event: e", b"data: \xc3\xbc", b"data"]
)
ENDS = st.sampled_from([b"\n", b"\r\n"])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    end = draw(ENDS)
    return end.join(draw(st.lists(LINES, min_size=1, max_size=3))) + end + end


@few
@given(st.lists(events(), max_size=6), st.data())
def test_however_it_is_cut_the_same_events_come_out(whole: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    cutter = EventCutter()
    assert [event for part in parts for event in cutter.push(part)] == whole
    assert cutter.pending == 0


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    b"data: ",
                    b'{"choices":[{"delta":{}}]}',
                    b'{"choices":[{"finish_reason":"stop"}]}',
                    b"{}",
                    b"[DONE]",
                ),
                *(
                    b"\n",
                    b"\n\n",
                    b"\r\n",
                    b"\r",
                    b"id: 7",
                    b": ping",
                    b'{"error":1}',
                    b" ",
                    b'{"choices":[{',
                    b"}]}",
                ),
            ]
        ),
        max_size=6,
    )
)
def test_what_goes_on_at_a_glance_is_one_event_that_ends_nothing(parts: list[bytes]) -> None:
    part = b"".join(parts)
    if goes_on(part):
        assert list(EventCutter().push(part)) == [part]
        reader = StreamReader()
        assert (reader.read(part), reader.finished) == ("data", False)


def test_what_engines_send_goes_on_at_a_glance() -> None:
    assert goes_on(
        b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    )
    assert not goes_on(b'data: {"choices":[{"index":0,"finish_reason":"length"}]}\n\n')
    assert not goes_on(b"data: [DONE]\n\n")


@few
@given(events(), st.data())
def test_a_tail_is_never_handed_out(event: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(event) - 1))
    cutter = EventCutter()
    assert list(cutter.push(event[:cut])) == []
    assert cutter.pending == cut


def test_one_event_is_bounded_and_many_small_ones_are_not() -> None:
    cutter = EventCutter(max_bytes=100)
    assert len(list(cutter.push(b"data: x\n\n" * 100))) == 100
    with pytest.raises(EventTooLarge):
        list(cutter.push(b"data: " + b"x" * 200))


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"data: [DONE]\n\n", "done"),
        (b"data:[DONE]\r\n\r\n", "done"),
        (b": ping\n\n", "comment"),
        (b"event: x\n\n", "comment"),
        (b'data: {"choices":[]}\n\n', "data"),
        (b'data: {"choices":[{"finish_reason":null}]}\n\n', "data"),
        (b'data: {"choices":"odd"}\n\n', "data"),
        (b"data: 7\n\n", "data"),
        (b'data: {"choices":\ndata: []}\n\n', "data"),
        (b'data: {"error":{"message":"x"}}\n\n', "error"),
        (b'data: {"error":null,"choices":[]}\n\n', "data"),
        (b"data: {bad json\n\n", "garbage"),
        (b'data: {"choices":"odd"\n\n', "garbage"),
        (b"data: \n\n", "garbage"),
        (b"data: " + b"[" * 50_000 + b"\n\n", "garbage"),
    ],
)
def test_each_event_is_known_for_what_it_is(event: bytes, kind: str) -> None:
    assert StreamReader().read(event) == kind


@pytest.mark.parametrize(
    ("event", "finished"),
    [
        (b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', True),
        (b'data: {"finish_reason":"length"}\n\n', True),
        (b'data: {"choices":[{"finish_reason":null}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}]}\n\n', False),
        (b": finish_reason\n\n", False),
    ],
)
def test_a_finish_reason_is_seen_only_where_it_is_one(event: bytes, finished: bool) -> None:
    reader = StreamReader()
    reader.read(event)
    assert reader.finished is finished


def finishing(index: int, reason: object = "stop") -> list[bytes]:
    """One item's last event, in every engine's words."""
    documents: list[object] = [
        {"choices": [{"index": index, "text": "", "finish_reason": reason}]},
        {"index": index, "output": "", "finish_reason": reason},
        {"index": index, "text": "x", "meta_info": {"finish_reason": {"type": reason}}},
    ]
    return [b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents]


@pytest.mark.parametrize("form", [0, 1, 2])
def test_several_answers_have_finished_when_each_of_them_has(form: int) -> None:
    reader = StreamReader(items=3)
    for index, finished in ((0, False), (2, False), (2, False), (1, True)):
        assert reader.read(finishing(index)[form]) == "data"
        assert reader.finished is finished


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("reason", ["abort", "error"])
def test_one_answer_that_was_given_up_is_an_error_of_all(form: int, reason: str) -> None:
    reader = StreamReader(items=2)
    assert reader.read(finishing(0)[form]) == "data"
    assert reader.read(finishing(1, reason)[form]) == "error"
    assert reason in str(reader.error["message"])
    assert reader.finished is False


def test_an_error_is_seen_in_a_shape_that_is_not_known() -> None:
    reader = StreamReader()
    assert reader.read(b'data: {"choices":5,"error":{"message":"why"}}\n\n') == "error"
    assert reader.error == {"message": "why"}


def test_the_error_event_is_one_framed_event_with_the_public_body() -> None:
    event = error_event(ApiError("decode_failed", "line\nbreak ü"), "r1")
    assert list(EventCutter().push(event)) == [event]
    error = json.loads(event_data(event) or b"")["error"]
    assert (error["code"], error["message"], error["request_id"]) == ("decode_failed", "line\nbreak ü", "r1")


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"{}", b'{"error":1}', b"\xff", b'{"error":', b"[" * 99_999]
)
def test_only_an_error_object_is_one(body: bytes) -> None:
    assert error_object(body) is None


def test_only_the_room_of_a_generate_answer_is_renamed() -> None:
    assert rename_room(b'{"output":"1.0","bootstrap_room":5,"x":1.10}', 9) == (
        b'{"output":"1.0","bootstrap_room":9,"x":1.10}'
    )
    assert rename_room(b'[{"bootstrap_room":5,"x":1.10},{"y":[1]}]', 9) == (
        b'[{"bootstrap_room":9,"x":1.10},{"y":[1]}]'
    )
    assert rename_room_in_event(b'data: {"bootstrap_room":5}\n\n', 9) == b'data: {"bootstrap_room":9}\n\n'
    for untouched in (b"data: [DONE]\n\n", b": ping\n\n", b'data: {"a" : 1}\r\n\r\n'):
        assert rename_room_in_event(untouched, 9) == untouched
