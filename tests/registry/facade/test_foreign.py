"""Foreign ranks in the keyspace's terms: what is put for them, and when what the keyspace shows is where they are."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from pdcore.registry.facade.bodies import Address, RankRegistration, Shared
from pdcore.registry.facade.bootstrap import Differs
from pdcore.registry.facade.foreign import ForeignIdentity, ForeignRanks, instance_record, rank_record
from pdcore.registry.facade.probing import probe, probe_all
from pdcore.registry.registration import Registration
from pdcore.topology import codec
from pdcore.topology.compat import check_pair
from pdcore.topology.instance import Instance
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import Record
from tests.support import fleet
from tests.support.registrations import spec

pytestmark = pytest.mark.integration

SHARED = Shared(
    tp_size=1, cp_size=1, dp_size=1, block_sizes=(32, 16), kv_cache_dtype="bfloat16", max_prefill_tokens=8192
)
IDENTITY = ForeignIdentity(
    instance_id="p0",
    incarnation="inc",
    models=("m",),
    url="http://127.0.0.1:1",
    host="127.0.0.1",
    bootstrap_port=18800,
    context_length=8192,
    machine="here",
    boot_id="boot",
    pid=os.getpid(),
)
ONLY = RankPosition(0, 0, 0)


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def address_of(listener: socket.socket) -> Address:
    return Address(*listener.getsockname()[:2])


def foreign_ranks() -> ForeignRanks:
    """Not entered: nothing is put and nothing probed but what a test asks for."""
    return ForeignRanks(IDENTITY, Registration(spec("etcd://127.0.0.1:1", "inc", instance_id="p0")))


def shown(address: Address) -> Instance:
    """The instance with its only rank at ``address``, as a topology has it."""
    record = instance_record(IDENTITY, SHARED, "serving")
    entries: dict[str, Record] = {
        "instances/p0": record,
        "ranks/p0/0.0.0": rank_record(IDENTITY, address),
    }
    return fleet.topology_of(entries).instances["p0"]


def at(address: Address) -> RankRegistration:
    return RankRegistration(shared=SHARED, position=ONLY, address=address)


def test_its_records_are_valid_and_pair_with_no_native_engine() -> None:
    record = instance_record(IDENTITY, SHARED, "serving")
    assert codec.decode("instances/p0", codec.encode(record)) == record
    assert (record.block_size, record.extra["max_prefill_tokens"]) == (32, 8192)
    decode = record._replace(role="decode", bootstrap_host=None, bootstrap_port=None)
    assert check_pair(record, decode) == ()
    assert any("protocol" in reason for reason in check_pair(record, fleet.instance_record("decode")))
    for ip in ("10.0.0.1", "::1", "fe80::1%lo"):
        rank = rank_record(IDENTITY, Address(ip, 7))
        assert codec.decode("ranks/p0/0.0.0", codec.encode(rank)) == rank


async def test_what_the_keyspace_shows_counts_only_where_the_ranks_are() -> None:
    ranks = foreign_ranks()
    with closing(listening()) as old, closing(listening()) as new:
        await ranks.register(at(address_of(old)))
        assert ranks.confirm(shown(address_of(old)))
        assert not ranks.confirm(shown(address_of(new)))


async def test_a_position_is_given_away_only_when_its_rank_does_not_answer() -> None:
    ranks = foreign_ranks()
    with closing(listening()) as old, closing(listening()) as new:
        await ranks.register(at(address_of(old)))
        with pytest.raises(Differs, match="still answers") as caught:
            await ranks.register(at(address_of(new)))
        assert caught.value.field == "rank_ip"
        old.close()
        await ranks.register(at(address_of(new)))
        assert ranks.confirm(shown(address_of(new)))


async def test_a_probe_tells_who_listens_from_who_does_not() -> None:
    with closing(listening()) as one:
        open_address = address_of(one)
        assert await probe(open_address) == "answers"
        one.close()
        assert await probe(open_address) == "refuses"
    with closing(listening()) as two:
        both = {ONLY: address_of(two), RankPosition(1, 0, 0): open_address}
        assert await probe_all(both) == {ONLY: "answers", RankPosition(1, 0, 0): "refuses"}
    assert await probe_all({}) == {}
