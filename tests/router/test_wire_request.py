"""What goes to an engine, byte for byte, and what can never go there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.upstream import NotConnected
from pdcore.router.wire_request import Origin, head, target, worded
from tests.support.odd_text import ODD

pytestmark = pytest.mark.unit

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("url", "origin", "opening"),
    [
        ("http://127.0.0.1:8001/v1/completions", ("127.0.0.1", 8001, False), "POST /v1/completions"),
        ("http://engine", ("engine", 80, False), "POST /"),
        ("https://engine/x?y=1", ("engine", 443, True), "POST /x?y=1"),
        ("http://[::1]:9/x", ("::1", 9, False), "POST /x"),
        ("HTTP://Engine:80/X", ("engine", 80, False), "POST /X"),
    ],
)
def test_a_url_is_an_origin_and_an_opening(url: str, origin: tuple[str, int, bool], opening: str) -> None:
    found = target(url)
    assert found.origin == Origin(*origin)
    assert found.opening.split(b" HTTP/1.1\r\n")[0] == opening.encode()


def test_the_host_is_named_as_the_url_names_it() -> None:
    for url, host in (("http://[::1]:9/x", "[::1]:9"), ("http://a:80/", "a:80"), ("http://a/", "a")):
        assert f"\r\nhost: {host}\r\n".encode() in target(url).opening


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "engine:8001",
            "ftp://engine/",
            "http://",
            "http:///x",
            "http://u:p@engine/",
            "http://a:99999/",
        ),
        *("http://a/ü", "http://a/x y", "http://[::1/", "file:///etc/passwd"),
    ],
)
def test_what_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(NotConnected):
        target(url)


def test_a_head_has_its_own_lines_the_callers_and_the_length() -> None:
    lines = head(target("http://a:1/x"), worded({"x-request-id": "r", "accept": "y"}), 12).split(b"\r\n")
    assert lines[0] == b"POST /x HTTP/1.1"
    assert lines[-2:] == [b"", b""]
    assert set(lines[1:-2]) == {
        *(b"host: a:1", b"accept-encoding: identity", b"content-type: application/json"),
        *(b"x-request-id: r", b"accept: y", b"content-length: 12"),
    }


@few
@given(st.dictionaries(st.text(ODD, min_size=1, max_size=8), st.text(ODD, max_size=8), max_size=4))
def test_no_header_is_ever_two_lines(headers: dict[str, str]) -> None:
    try:
        sent = head(target("http://a/"), worded(headers), 0)
    except ValueError:
        return
    assert len(sent.splitlines()) >= len(headers)
    assert sent.count(b"\r") == sent.count(b"\n") == len(headers) + 6
    assert sent.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("value", ["a\r\nx: 1", "a\n", "\r", "a\0", "€"])
def test_a_value_that_http_cannot_carry_is_a_bug_and_says_so(value: str) -> None:
    with pytest.raises(ValueError):
        worded({"x": value})
