"""The private listener: each attempt has its own address, and what is said there first counts."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message

from pdcore.router.callbacks import MAX_CALL_BYTES, Callback, Callbacks

pytestmark = pytest.mark.unit

URL = "http://h:1"


async def post(
    callbacks: Callbacks, url: str, *parts: bytes, method: str = "POST", gone: bool = False
) -> int:
    """The status of a call to ``url``; one that leaves before its end when ``gone``."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.disconnect"} if gone else {"type": "http.request", "body": b""})
    statuses: list[int] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: dict[str, Any] = {"type": "http", "method": method, "path": url.removeprefix(URL)}
    await callbacks(scope, receive, send)
    return statuses[0]


def heard(callback: Callback) -> list[bytes]:
    """What was said to it so far."""
    said: list[bytes] = []
    callback.tell(said.append)
    return said


async def test_whoever_waits_is_told_when_it_is_said() -> None:
    callbacks = Callbacks(URL)
    one = callbacks.expect()
    said: list[bytes] = []
    one.tell(said.append)
    assert not said
    assert await post(callbacks, one.url, b"now") == 200
    assert said == [b"now"]


async def test_what_is_posted_to_an_attempts_address_is_heard_by_it_alone() -> None:
    callbacks = Callbacks(URL)
    one, other = callbacks.expect(), callbacks.expect()
    assert await post(callbacks, one.url, b'{"a"', b":1}") == 200
    assert heard(one) == [b'{"a":1}']
    assert heard(other) == []


async def test_an_engine_that_calls_again_is_told_the_same_and_changes_nothing() -> None:
    callbacks = Callbacks(URL)
    one = callbacks.expect()
    assert [await post(callbacks, one.url, said) for said in (b"first", b"second")] == [200, 200]
    assert heard(one) == [b"first"]


async def test_nobody_is_heard_elsewhere() -> None:
    callbacks = Callbacks(URL)
    one = callbacks.expect()
    for url, method in (
        (URL + "/metaserver/guessed", "POST"),
        (URL + "/metaserver/", "POST"),
        (URL + "/", "POST"),
        (one.url + "/x", "POST"),
        (one.url, "GET"),
    ):
        assert await post(callbacks, url, b"{}", method=method) == 404
    one.close()
    assert await post(callbacks, one.url, b"{}") == 404
    assert len(callbacks) == 0
    one.close()


async def test_a_call_that_is_too_large_or_cut_off_is_not_heard() -> None:
    callbacks = Callbacks(URL)
    one = callbacks.expect()
    assert await post(callbacks, one.url, b"x" * MAX_CALL_BYTES, b"x") == 413
    assert await post(callbacks, one.url, b'{"a"', gone=True) == 413
    assert await post(callbacks, one.url, b"{}") == 200
    assert heard(one) == [b"{}"]


def test_addresses_cannot_be_guessed_from_each_other() -> None:
    callbacks = Callbacks(URL)
    urls = {callbacks.expect().url for _ in range(100)}
    assert len(urls) == 100
    assert min(len(url) for url in urls) >= len(URL) + len("/metaserver/") + 22
