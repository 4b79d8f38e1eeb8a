"""Which headers cross the router, and what a client may name its request."""

from __future__ import annotations

import pytest

from pdcore.errors import ApiError
from pdcore.router import headers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("given", [b"a", b"!" * 128, b"x-~-1"])
def test_a_usable_request_id_is_kept(given: bytes) -> None:
    assert headers.read([(b"x-request-id", given)]).request_id == given.decode()


@pytest.mark.parametrize(
    "given", [b"", b" ", b"a b", b"a\r\nb", b"\x7f", "ü".encode(), b"x" * 129, b"x" * 10_000]
)
def test_an_unusable_request_id_is_refused_by_name(given: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        headers.read([(b"x-request-id", given)])
    assert (caught.value.status, caught.value.param) == (400, "x-request-id")


def test_two_request_ids_are_refused_and_none_makes_a_new_one_each_time() -> None:
    with pytest.raises(ApiError):
        headers.read([(b"x-request-id", b"a"), (b"x-request-id", b"a")])
    assert headers.read([]).request_id != headers.read([]).request_id


def test_compressed_bodies_and_huge_headers_are_refused() -> None:
    for raw, status in (((b"content-encoding", b"gzip"), 415), ((b"x", b"y" * 70_000), 431)):
        with pytest.raises(ApiError) as caught:
            headers.read([raw])
        assert caught.value.status == status
    headers.read([(b"content-encoding", b"identity")])


@pytest.mark.parametrize("announced", [b"", b"-1", b"1.5", b"9" * 20, b"9" * 5000])
def test_a_length_that_is_none_is_not_believed(announced: bytes) -> None:
    assert headers.read([(b"content-length", announced)]).content_length is None


def test_only_named_headers_cross() -> None:
    sent = [
        *((b"authorization", b"Bearer s"), (b"cookie", b"c"), (b"host", b"h"), (b"te", b"trailers")),
        *((b"x-pdcore-prefill-incarnation", b"evil"), (b"x-pdcore-remaining-ms", b"1"), (b"x-foo", b"1")),
        *((b"connection", b"x-foo"), (b"traceparent", b"00-1"), (b"content-length", b"5")),
    ]
    said = headers.read(sent)
    assert (said.forwarded, said.content_length) == ({"traceparent": "00-1"}, 5)
    engine = {
        "content-type": "text/plain",
        "content-length": "9",
        "connection": "x-foo",
        "x-foo": "1",
        "server": "s",
    }
    assert headers.returned({**engine, "x-pdcore-kv": "received"}) == {"content-type": "text/plain"}
