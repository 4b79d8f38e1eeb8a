"""Frames that go on as they are: only what the parser, the cutter and the reader would call one event of a running stream."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.router.frames import RunningFrames
from pdcore.router.relay import EventCutter, StreamReader

MORE = b'{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
EVENT = b"data: " + MORE + b"\n\n"


def frame(event: bytes, size: str = "%x") -> bytes:
    return (size % len(event)).encode() + b"\r\n" + event + b"\r\n"


class Chunks:
    """What an HTTP parser makes of a body that begins with ``data``."""

    def __init__(self, data: bytes) -> None:
        self.bodies: list[bytes] = []
        self.complete = False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self.bodies.append(part)

    def on_chunk_complete(self) -> None:
        self.complete = True


@pytest.mark.parametrize("length", [1, 9, 10, 200, 240, 4000, 65_000, 900_000])
@pytest.mark.parametrize("size", ["%x", "%X"])
def test_what_engines_send_is_seen_whatever_its_size(length: int, size: str) -> None:
    event = EVENT.replace(b'"a"', b'"' + b"a" * length + b'"')
    assert RunningFrames().carries_more(frame(event, size))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\r\n\r\n",
        frame(b""),
        frame(b"data: \n\n"),
        frame(EVENT)[:-1],
        frame(EVENT) + b"0\r\n\r\n",
        frame(EVENT) * 2,
        frame(EVENT + EVENT),
        frame(EVENT, "0%x"),
        frame(EVENT, "+%x"),
        frame(EVENT, "%x;a=b"),
        frame(EVENT[:-1]),
        frame(b": ping\n\n"),
        frame(b"data: [DONE]\n\n"),
        frame(b"data:" + MORE + b"\n\n"),
        frame(b"id: 1\n" + EVENT),
        frame(EVENT.replace(b":null", b':"stop"')),
        frame(EVENT.replace(b'"id":"x"', b'"error":{}')),
        frame(EVENT.replace(b'"id":"x"', b'"finish_reason":"stop"')),
        frame(EVENT.replace(b'"id":"x"', b'"meta_info":{"finish_reason":null}')),
        frame(b'data: {"choices":[]}\n\n'),
        frame(b'data: {"choices":[{},{}]}\n\n'),
        frame(b"data: " + MORE[:-1] + b"\n\n"),
        frame(b"data: " + MORE[:-1] + b"\n\n}\n\n"),
        frame(b"data: " + MORE.replace(b'"a"', b"NaN") + b"\n\n"),
    ],
)
def test_anything_else_is_left_to_those_who_read_it_thoroughly(data: bytes) -> None:
    assert not RunningFrames().carries_more(data)
    frames = RunningFrames()
    assert frames.carries_more(frame(EVENT))
    assert not frames.carries_more(data)


@given(
    st.lists(
        st.sampled_from(
            [
                *(b"data: ", b"\n", b"\r", b"\n\n", MORE, b'{"choices":[{', b"}]}", b" ", b": ping\n\n"),
                *(
                    b'"finish_reason":null',
                    b'"finish_reason":"stop"',
                    b'"index":1',
                    b",",
                    b"[DONE]",
                    b'{"error":1}',
                ),
            ]
        ),
        max_size=7,
    )
)
def test_what_goes_on_is_what_parser_cutter_and_reader_make_of_it(parts: list[bytes]) -> None:
    event = b"".join(parts)
    data = frame(event)
    if not RunningFrames().carries_more(data):
        return
    seen = Chunks(data)
    assert (seen.bodies, seen.complete) == ([event], True)
    assert list(EventCutter().push(event)) == [event]
    reader = StreamReader()
    assert (reader.read(event), reader.finished) == ("data", False)


TEXTS = [
    *(
        b"",
        b"b",
        b" two words",
        "gr\u00fc\u00df".encode(),
        "\U0001f600".encode(),
        b"\\n",
        b'\\"',
        b"\\",
        b'"',
        b"\n",
        b"\x00",
    ),
    *(
        b"\x7f",
        b"\xff",
        b"\xed\xa0\x80",
        b'a","finish_reason":"stop',
        b'"}',
        b'","content":"',
        b'"}}]}\n\ndata: {"a":"',
    ),
]


@pytest.mark.parametrize("name", [b"content", b"text"])
def test_frames_that_differ_in_their_text_alone_go_on_alike(name: bytes) -> None:
    frames = RunningFrames()
    for text in (b"a", b"", b"longer", "gr\u00fc\u00df".encode(), b"\\n", b"and more"):
        assert frames.carries_more(frame(EVENT.replace(b'"content":"a"', b'"%b":"%b"' % (name, text))))


@given(
    st.lists(
        st.tuples(st.sampled_from(TEXTS), st.integers(0, 120), st.integers(0, 3), st.sampled_from(TEXTS)),
        max_size=8,
    )
)
def test_what_came_before_changes_nothing_about_what_a_frame_is_taken_for(
    changes: list[tuple[bytes, int, int, bytes]],
) -> None:
    frames = RunningFrames()
    for text, at, cut, put in changes:
        event = EVENT.replace(b'"a"', b'"%b"' % text)
        for data in (frame(event), frame(event[:at] + put + event[at + cut :])):
            assert frames.carries_more(data) == RunningFrames().carries_more(data)
