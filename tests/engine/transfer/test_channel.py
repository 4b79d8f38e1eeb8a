"""Control sockets: nothing blocks, everything is bounded."""

from __future__ import annotations

import pytest
import zmq

from pdcore.engine.transfer import channel
from pdcore.engine.transfer.channel import Outbox, Sending
from pdcore.errors import ConfigError, PeerGone
from tests.engine.transfer.ranks import Context
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration


def test_an_outbox_keeps_order_and_replaces_what_waits() -> None:
    box, sent = Outbox(10), list[bytes]()

    def deliver(frame: bytes) -> Sending:
        sent.append(frame)
        return "sent"

    for key, frame in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        box.put(key, frame)
    assert len(box) == 2
    box.flush(deliver)
    assert (sent, len(box), box.dropped) == ([b"3", b"2"], 0, 0)


@pytest.mark.parametrize("answer", ["later", "no_peer"])
def test_an_outbox_stops_at_what_cannot_go_and_keeps_it(answer: Sending) -> None:
    box = Outbox(10)
    box.put("a", b"1")
    box.put("b", b"2")
    calls: list[bytes] = []

    def refuse(frame: bytes) -> Sending:
        calls.append(frame)
        return answer

    box.flush(refuse)
    assert (calls, len(box)) == ([b"1"], 2)


def test_a_full_outbox_drops_the_newest_and_counts() -> None:
    box = Outbox(2)
    for key in range(5):
        box.put(key, b"x")
    assert (len(box), box.dropped) == (2, 3)


def test_sending_to_a_peer_that_never_reads_ends_in_later_not_in_a_wait(context: Context) -> None:
    with (
        channel.open_socket(context, zmq.ROUTER) as router,
        channel.open_socket(context, zmq.DEALER) as dealer,
    ):
        port = channel.bind(router, "127.0.0.1")
        channel.connect(dealer, "127.0.0.1", port)
        outcomes = {channel.send(dealer, bytes(65536)) for _ in range(2000)}
        assert outcomes == {"sent", "later"}


def test_a_router_names_a_peer_that_is_not_there(context: Context) -> None:
    with (
        channel.open_socket(context, zmq.ROUTER) as router,
        channel.open_socket(context, zmq.DEALER) as dealer,
    ):
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        channel.connect(dealer, "127.0.0.1", channel.bind(router, "127.0.0.1"))
        assert channel.send(router, b"nobody", b"x") == "no_peer"
        assert channel.send(dealer, b"hello") == "sent"
        [[route, frame]] = eventually_now(lambda: channel.receive(router, 1), 5)
        assert frame == b"hello"
        assert channel.send(router, route, b"x") == "sent"


def test_receiving_takes_at_most_what_was_asked_for(context: Context) -> None:
    with (
        channel.open_socket(context, zmq.ROUTER) as router,
        channel.open_socket(context, zmq.DEALER) as dealer,
    ):
        channel.connect(dealer, "127.0.0.1", channel.bind(router, "127.0.0.1"))
        for _ in range(10):
            channel.send(dealer, b"x")
        seen: list[int] = []

        def take() -> bool:
            seen.append(len(channel.receive(router, 3)))
            return sum(seen) == 10

        eventually_now(take, 5)
        assert max(seen) <= 3
        assert channel.receive(router, 3) == []


@pytest.mark.parametrize("ip", ["", "*", "localhost", "1.2.3", "127.0.0.1:80"])
def test_only_numeric_addresses_are_used(context: Context, ip: str) -> None:
    with channel.open_socket(context, zmq.DEALER) as socket:
        with pytest.raises(PeerGone):
            channel.connect(socket, ip, 80)
        with pytest.raises(ConfigError):
            channel.bind(socket, ip)


def test_an_address_that_is_not_ours_is_a_sentence(context: Context) -> None:
    with (
        channel.open_socket(context, zmq.ROUTER) as socket,
        pytest.raises(ConfigError, match=r"192\.0\.2\.77"),
    ):
        channel.bind(socket, "192.0.2.77")
