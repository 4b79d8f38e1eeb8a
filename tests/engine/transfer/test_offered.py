"""Several engines as one: each pair takes the best that reaches, and a link stays with its engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.memfabric_library import Terms
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.offered import OfferedEngines, OfferedReceiver, OfferedSender
from pdcore.errors import PeerGone
from tests.engine.transfer.block_copies import copy_blocks
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration

TOKEN, OTHER, NBYTES = b"t" * 16, b"o" * 16, 8192


def engines(setting: str = "auto") -> OfferedEngines:
    terms = Terms(host="127.0.0.1", protocol="sdma", store=None, device=0)
    return OfferedEngines.named(
        setting, bind_ip="127.0.0.1", secret=b"", mooncake=("tcp", ""), memfabric=terms
    )


@pytest.fixture
def region() -> Iterator[Region]:
    with Region(NBYTES) as opened:
        yield opened


@pytest.fixture
def sender(runtime_dir: Path) -> Iterator[OfferedSender]:
    with engines().sender(memoryview(bytearray(range(256)) * 32), runtime_dir) as opened:
        yield opened


@pytest.fixture
def receiver(region: Region) -> Iterator[OfferedReceiver]:
    with engines().receiver(region) as opened:
        yield opened


def change(endpoint: dict[str, object], engine: str, **fields: object) -> dict[str, object]:
    """The endpoint with another document for one engine."""
    offers = endpoint["engines"]
    assert isinstance(offers, dict)
    return {"engines": offers | {engine: offers[engine] | fields}}


def links(sender: OfferedSender, receiver: OfferedReceiver, engine: str, token: bytes = TOKEN) -> None:
    """The link was made by ``engine``, and moves bytes."""
    eventually_now(lambda: Linked(token, NBYTES) in sender.drain(), 10, "the link")
    assert sender._links[token] is sender._senders[engine]
    receiver.allow(token, 1)
    sender.write(token, copy_blocks([1], [2], 256), 1)


def test_neighbours_link_by_shared_memory(
    sender: OfferedSender, receiver: OfferedReceiver, region: Region
) -> None:
    receiver.connect(sender.endpoint(), TOKEN)
    links(sender, receiver, "shm")
    assert bytes(region.memory[512:768]) == bytes(range(256))
    assert receiver.revoke(TOKEN, 1) is False


@pytest.mark.parametrize(
    "fields", [{"boot_id": "another machine"}, {"socket": "/nowhere/kv.sock"}], ids=["machine", "container"]
)
def test_where_memory_cannot_be_shared_tcp_takes_over(
    sender: OfferedSender, receiver: OfferedReceiver, region: Region, fields: dict[str, object]
) -> None:
    receiver.connect(change(sender.endpoint(), "shm", **fields), TOKEN)
    links(sender, receiver, "tcp")
    assert bytes(region.memory[512:768]) == bytes(range(256))
    assert receiver.revoke(TOKEN, 1) is True


def test_links_of_both_engines_live_and_end_side_by_side(
    sender: OfferedSender, receiver: OfferedReceiver
) -> None:
    receiver.connect(sender.endpoint(), TOKEN)
    links(sender, receiver, "shm")
    receiver.connect(change(sender.endpoint(), "shm", boot_id="another"), OTHER)
    links(sender, receiver, "tcp", OTHER)
    receiver.disconnect(TOKEN)
    eventually_now(lambda: Lost(TOKEN) in sender.drain(), 10)
    sender.release(TOKEN)
    sender.write(OTHER, copy_blocks([1], [2], 256), 1)
    with pytest.raises(PeerGone):
        sender.write(TOKEN, copy_blocks([1], [2], 256), 1)
    sender.release(OTHER)
    eventually_now(lambda: Lost(OTHER) in receiver.drain(), 10)
    assert receiver.revoke(OTHER, 1)


def test_a_token_is_not_let_in_by_a_second_engine(sender: OfferedSender, receiver: OfferedReceiver) -> None:
    receiver.connect(sender.endpoint(), TOKEN)
    links(sender, receiver, "shm")
    with Region(NBYTES) as theirs, engines("tcp").receiver(theirs) as thief:
        thief.connect(sender.endpoint(), TOKEN)
        eventually_now(lambda: sender.drain() == [] and Lost(TOKEN) in thief.drain(), 10)
        assert not any(theirs.memory)
    sender.write(TOKEN, copy_blocks([1], [2], 256), 1)


def test_nothing_in_common_is_said_with_both_lists(sender: OfferedSender, region: Region) -> None:
    with engines("tcp").receiver(region) as receiver:
        shm_only = change(sender.endpoint(), "shm")["engines"]
        assert isinstance(shm_only, dict)
        del shm_only["tcp"]
        with pytest.raises(PeerGone, match="it offers shm, we have tcp") as gone:
            receiver.connect({"engines": shm_only}, TOKEN)
        assert not gone.value.in_doubt


def test_what_one_engine_needs_all_links_do() -> None:
    assert (engines().names, engines().name) == (("shm", "tcp"), "shm+tcp")
    caps = engines().caps
    assert (caps.cross_host, caps.can_revoke, caps.requires_doorbell) == (True, True, True)
    assert engines("shm").caps.cross_host is False
    assert engines("memfabric").caps.alignment == 2 << 20
