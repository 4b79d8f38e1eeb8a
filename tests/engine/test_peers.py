"""A decode leader finds its peer in the keyspace, waits a moment for what it does not know, and connects to nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from pdcore.clock import SystemClock
from pdcore.engine.legs import Leg
from pdcore.engine.messages import Ready
from pdcore.engine.peers import Peers, knows, locate
from pdcore.engine.records import Identity, disagreements, instance_record, rank_records
from pdcore.engine.room_choice import RoomLookup
from pdcore.errors import ApiError, ConfigError
from pdcore.registry.memory import MemoryStore
from pdcore.registry.rooms import names
from pdcore.registry.rooms.names import RoomName
from pdcore.registry.rooms.store_reader import StoreReader
from pdcore.registry.store import Put
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace, RankId, RankPosition
from pdcore.topology.records import DepartureRecord, InstanceRecord, Role
from pdcore.topology.topology import Stored, Topology, build
from tests.support.fake_rank import READY

pytestmark = pytest.mark.unit

LEG = Leg(room=7, host="127.0.0.1", port=18800, dp_rank=None)


def identity(role: Role, incarnation: str = "one", rooms_in: str | None = None) -> Identity:
    return Identity(
        role=role,
        instance_id=f"{role}-0",
        incarnation=incarnation,
        models=("m",),
        host="127.0.0.1",
        url="http://127.0.0.1:1",
        bootstrap_port=18800 if role == "prefill" else None,
        block_size=16,
        machine="here",
        boot_id="boot",
        pid=1,
        extra={} if rooms_in is None else {"dp_rank_choice": "engine", "room_directory": rooms_in},
    )


def ready(*ranks: RankPosition) -> dict[RankPosition, Ready]:
    return dict.fromkeys(ranks, READY)


def topology(
    incarnation: str = "one",
    *,
    ranks: bool = True,
    dp_size: int = 1,
    positions: Sequence[RankPosition] = (),
    without: RankPosition | None = None,
    departed: str | None = None,
    rooms_in: str | None = None,
) -> Topology:
    who = identity("prefill", incarnation, rooms_in)
    said = ready(*(positions or (RankPosition(dp, 0, 0) for dp in range(dp_size))))
    entries = {keys.instance("prefill-0"): codec.encode(instance_record(who, said, "serving"))}
    if departed is not None:
        record = DepartureRecord(incarnation=departed, reason="died", by="registrar")
        entries[keys.departure("prefill-0")] = codec.encode(record)
    if ranks:
        for position, rank in rank_records(incarnation, "here", said).items():
            if position == without:
                continue
            entries[keys.rank(RankId("prefill-0", position))] = codec.encode(rank)
    return build({key: Stored(value, 5) for key, value in entries.items()}, 5)


class ScriptedView:
    """Shows ``now``, and ``later`` to whoever waits (never, when there is none)."""

    def __init__(self, now: Topology, later: Topology | None = None) -> None:
        self.topology = now
        self._later = later
        self.waited_s: list[float] = []

    async def wait_until(self, predicate: Callable[[Topology], bool], timeout_s: float) -> Topology:
        self.waited_s.append(timeout_s)
        if self._later is not None and predicate(self._later):
            self.topology = self._later
            return self._later
        raise TimeoutError


def own_record() -> InstanceRecord:
    return instance_record(identity("decode"), ready(RankPosition(0, 0, 0)), "serving")


async def find(
    view: ScriptedView, expected: str | None, own: InstanceRecord | None = None, leg: Leg = LEG
) -> str:
    lookup = RoomLookup(
        reader=StoreReader(Keyspace(cluster="c"), MemoryStore(), SystemClock()), directory="store"
    )
    peers = Peers(view, lambda: own, lookup)
    async with asyncio.timeout(1):
        return (await peers.prefill(leg, expected)).incarnation


async def test_a_known_peer_is_found_without_waiting() -> None:
    for expected in ("one", None):
        view = ScriptedView(topology())
        assert await find(view, expected, own_record()) == "one"
        assert view.waited_s == []


def test_a_peer_is_all_ranks_of_the_dp_group_or_nobody() -> None:
    group = [RankPosition(dp, cp, tp) for dp in range(2) for cp in range(2) for tp in range(2)]
    peer = locate(topology(positions=group), replace(LEG, dp_rank=1), "one")
    assert [(rank.dp, rank.cp, rank.tp) for rank in peer.ranks] == [
        (1, 0, 0),
        (1, 0, 1),
        (1, 1, 0),
        (1, 1, 1),
    ]
    assert (peer.dp, peer.dp_size, peer.cp_size, peer.tp_size) == (1, 2, 2, 2)
    incomplete = topology(positions=group, without=RankPosition(1, 1, 0))
    with pytest.raises(ApiError, match=r"has no rank 1\.1\.0") as caught:
        locate(incomplete, replace(LEG, dp_rank=1), "one")
    assert caught.value.status == 503
    assert locate(incomplete, replace(LEG, dp_rank=0), "one").dp == 0


def test_a_peer_is_its_rank_record() -> None:
    peer = locate(topology(), LEG, "one")
    (rank,) = peer.ranks
    assert (rank.instance_id, rank.rank_ip, rank.rank_port) == ("prefill-0", "127.0.0.1", 4321)
    assert rank.transfer == {"kind": "fake"}
    assert locate(topology(dp_size=2), replace(LEG, dp_rank=1), None).dp == 1


async def test_an_incarnation_not_known_yet_is_waited_for() -> None:
    view = ScriptedView(topology("one"), topology("two"))
    assert await find(view, "two") == "two"
    assert view.waited_s == [0.5]


async def test_one_that_does_not_come_is_a_stale_view() -> None:
    for view in (ScriptedView(topology("one")), ScriptedView(Topology.empty())):
        with pytest.raises(ApiError) as caught:
            await find(view, "two")
        assert (caught.value.status, caught.value.refused) == (421, "stale")


async def test_one_that_is_known_to_be_gone_is_not_waited_for() -> None:
    view = ScriptedView(topology("two", departed="one"))
    with pytest.raises(ApiError) as caught:
        await find(view, "one")
    assert (caught.value.refused, view.waited_s) == ("stale", [])


async def test_an_address_that_names_nobody_is_400_when_nobody_was_expected() -> None:
    with pytest.raises(ApiError) as caught:
        await find(ScriptedView(topology()), None, leg=replace(LEG, port=9))
    assert (caught.value.status, caught.value.param) == (400, "bootstrap_host")


async def test_an_instance_without_that_rank_is_unavailable() -> None:
    view = ScriptedView(topology(ranks=False))
    assert not knows(view.topology, LEG, "one")
    with pytest.raises(ApiError) as caught:
        await find(view, "one")
    assert caught.value.status == 503


async def test_a_dp_rank_out_of_range_is_the_senders_mistake() -> None:
    with pytest.raises(ApiError) as caught:
        await find(ScriptedView(topology()), "one", leg=replace(LEG, dp_rank=1))
    assert (caught.value.status, caught.value.param) == (400, "disagg_prefill_dp_rank")


class Directory:
    """A store with a reader of rooms that waits for 10 ms."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.reader = StoreReader(Keyspace(cluster="c"), self.store, SystemClock())

    async def put(self, room: int, dp_rank: int) -> None:
        key = names.key(Keyspace(cluster="c"), RoomName("prefill-0", room))
        await self.store.commit((), (Put(key, names.encode_rank(dp_rank)),))

    async def find(self, seen: Topology, leg: Leg = LEG, expected: str | None = "one") -> int:
        """The DP rank at which a decode leader looks for its peer."""
        lookup = RoomLookup(reader=self.reader, directory="store", wait_s=0.01 if leg.room == 8 else 5)
        return (await Peers(ScriptedView(seen), lambda: None, lookup).prefill(leg, expected)).dp


async def test_an_instance_that_chooses_its_dp_rank_is_looked_up_in_the_directory() -> None:
    directory, seen = Directory(), topology(dp_size=4, rooms_in="store")
    async with directory.reader:
        await directory.put(7, 3)
        assert await directory.find(seen) == 3
        assert await directory.find(seen, replace(LEG, dp_rank=1)) == 1
        assert directory.reader.statistics().known == 1


async def test_a_look_into_the_directory_that_leads_nowhere_is_told_apart() -> None:
    directory, chooses = Directory(), topology(dp_size=2, rooms_in="store")
    async with directory.reader:
        await directory.put(7, 2)
        for seen, leg, why in (
            (chooses, replace(LEG, room=8), "has not said within 0.01 s"),
            (chooses, LEG, "has no DP rank 2"),
            (topology(rooms_in="redis"), LEG, "give both the same --redis"),
        ):
            with pytest.raises(ApiError, match=why) as caught:
                await directory.find(seen, leg)
            assert caught.value.status == 503
        with pytest.raises(ApiError) as stale:
            await directory.find(chooses, expected="two")
        assert stale.value.refused == "stale"


async def test_who_does_not_choose_is_not_looked_up() -> None:
    directory = Directory()
    async with directory.reader:
        assert await directory.find(topology(), replace(LEG, room=8)) == 0
        assert directory.reader.statistics().store_error is None
        assert directory.reader.statistics().known == 0


async def test_instances_that_do_not_fit_together_are_not_paired() -> None:
    own = own_record()
    other = own._replace(compat=replace(own.compat, model_fingerprint="another"))
    with pytest.raises(ApiError, match="model_fingerprint") as caught:
        await find(ScriptedView(topology()), "one", other)
    assert caught.value.status == 503


def test_a_record_counts_what_its_ranks_said() -> None:
    positions = ready(
        RankPosition(0, 0, 0), RankPosition(0, 0, 1), RankPosition(1, 0, 0), RankPosition(1, 0, 1)
    )
    record = instance_record(identity("prefill"), positions, "starting")
    assert (record.dp_size, record.cp_size, record.tp_size, record.pp_size) == (2, 1, 2, 1)
    assert (record.kv_tokens, record.state) == (2 * READY.kv_tokens, "starting")
    assert (record.bootstrap_host, record.bootstrap_port) == ("127.0.0.1", 18800)


def test_an_instance_of_sizes_that_no_peer_could_take_is_not_registered() -> None:
    positions = ready(*(RankPosition(0, cp, tp) for cp in range(2) for tp in range(5)))
    with pytest.raises(ConfigError) as caught:
        instance_record(identity("decode"), positions, "starting")
    heads = READY.compat["kv_heads"]
    assert caught.value.problems == (
        "cp_size: decode has 2, only 1 can be served",
        f"tp_size: decode has 5 ranks for {heads} KV heads: neither divides the other",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("kv_dtype", "bfloat16"), ("block_sizes", [16, 32]), ("layout", 2), ("wire", 9), ("kv_layout", "other")],
)
def test_a_rank_that_disagrees_with_its_instance_is_refused_with_the_field(field: str, value: object) -> None:
    positions = ready(RankPosition(0, 0, 0), RankPosition(0, 0, 1))
    other = msgspec.structs.replace(READY, compat=READY.compat | {field: value})
    positions[RankPosition(0, 0, 1)] = other
    with pytest.raises(ConfigError) as caught:
        instance_record(identity("prefill"), positions, "starting")
    expected = f"rank 0.0.1: {field} is {value!r}, rank 0.0.0 has {READY.compat[field]!r}"
    assert caught.value.problems == (expected,)


def test_a_rank_with_another_block_size_than_the_instance_was_started_with_is_refused() -> None:
    other = replace(identity("decode"), block_size=32)
    with pytest.raises(ConfigError, match=r"block_sizes is \[16\], the instance was started with 32"):
        instance_record(other, ready(RankPosition(0, 0, 0)), "starting")


def test_a_word_that_a_rank_leaves_out_is_a_disagreement_too() -> None:
    positions = ready(RankPosition(0, 0, 0), RankPosition(0, 0, 1))
    without = {name: value for name, value in READY.compat.items() if name != "kv_dtype"}
    positions[RankPosition(0, 0, 1)] = msgspec.structs.replace(READY, compat=without)
    (said,) = disagreements(identity("decode"), positions)
    assert said == "rank 0.0.1: kv_dtype is None, rank 0.0.0 has 'float32'"
