"""The transport's own part in what goes wrong."""

from __future__ import annotations

from collections.abc import Coroutine

import pytest

from pdcore.beside import running_beside
from pdcore.router.upstream import HttpxUpstream, NotConnected, Post
from tests.support.eventually import eventually
from tests.support.fake_engines import FakeEngine, Hang

pytestmark = [pytest.mark.integration]


async def test_a_connection_closed_on_this_side_before_the_answer_counts_as_none() -> None:
    async with FakeEngine([(Hang(),)]) as engine:
        upstream = HttpxUpstream(connect_timeout_s=5, write_timeout_s=5)

        async def close_its_connections() -> None:
            await eventually(lambda: engine.seen, 5, "the request has arrived")
            await upstream.__aexit__()

        async with upstream:
            with pytest.raises(NotConnected, match="the pool closed the connection"):
                await _ask_while(upstream, engine.url, close_its_connections())


async def _ask_while(upstream: HttpxUpstream, url: str, meanwhile: Coroutine[object, object, None]) -> None:
    async with running_beside(meanwhile), upstream.post(Post(url=url, headers={}, body=b"{}")):
        raise AssertionError("an answer")
