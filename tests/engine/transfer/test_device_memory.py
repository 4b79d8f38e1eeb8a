"""Engines that reach a device's memory: what is registered, and how often the host reads its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from pdcore.clock import SystemClock
from pdcore.engine.transfer.aux_record import AUX_BYTES
from pdcore.engine.transfer.device_memory import ALIGNMENT, DeviceRecords, DeviceRegion, allocate
from pdcore.engine.transfer.memfabric import MemfabricEngine
from pdcore.engine.transfer.memfabric_library import Terms
from pdcore.engine.transfer.mooncake import MooncakeEngine
from pdcore.engine.transfer.offered import OfferedEngines
from pdcore.engine.transfer.orders import Arrived, Handshaken, Open, Send, Sent, TokenLogprobs
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.slot import SLOT_BYTES
from pdcore.engine.transfer.tcp import TcpEngine
from pdcore.engine.transfer.wire import RankIdentity
from pdcore.errors import ConfigError
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import CANARY, DECODE_BLOCKS, LAYOUT, ONE, SLOTS, SOURCE_BLOCKS, Context
from tests.support.eventually import eventually_now
from tests.support.fake_ascend import Machine, memfabric
from tests.support.fake_device import Traffic, filled, on_fake_device

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
BLOCK, PROBES = LAYOUT.block_bytes, 8
LOGPROBS = TokenLogprobs(logprob=-0.25, top=((3, -0.25), (9, -2.5)))


class CountedRegion(DeviceRegion):
    """Counts copies to the host."""

    def __init__(self, traffic: Traffic, nbytes: int, alignment: int) -> None:
        super().__init__(CPU, nbytes, alignment)
        self._traffic = traffic

    def __enter__(self) -> Self:
        super().__enter__()
        self.tensor[:] = CANARY
        self.tensor = on_fake_device(self.tensor, self._traffic)
        return self


class Pair:
    """A prefill and a decode rank over memfabric, both pools on a device."""

    def __init__(self, sending: SendingSession, receiving: ReceivingSession, traffic: Traffic) -> None:
        self.prefill = ranks.Prefill(sending, sends=False)
        self.decode = receiving
        self.traffic = traffic
        self.clock = SystemClock()
        self.arrived: list[Arrived] = []
        self.copies: list[int] = []

    def hand_off(self, room: int, blocks: tuple[int, ...]) -> None:
        self.prefill.expect(room, ranks.tokens_of(room))
        order = Open(
            handoff=room,
            room=room,
            prefill=ranks.group_of(ranks.peer_at(self.prefill.session.endpoint)),
            blocks=(blocks,),
            prompt_len=ranks.tokens_of(room),
            remaining_ms=20_000,
        )
        self.decode.obey(order, self.clock.now())

    def turn(self) -> None:
        """Both loops once; what decode's cost in copies is remembered while slots are watched."""
        self.prefill.turn()
        watched, before = self.decode._slots.end, self.traffic.to_host
        self.arrived += [e for e in self.decode.poll(self.clock.now()) if isinstance(e, Arrived)]
        copies = self.traffic.to_host - before
        assert copies == (1 if watched else 0)
        self.copies.append(copies)

    def until(self, check: Callable[[], object]) -> None:
        def turned() -> object:
            self.turn()
            return check()

        eventually_now(turned, 10)


@pytest.fixture
def pair(tmp_path: Path, context: Context, runtime_dir: Path) -> Iterator[Pair]:
    def engine() -> MemfabricEngine:
        terms = Terms(host="127.0.0.1", protocol="sdma", store=None, device=0)
        return MemfabricEngine(terms=terms, load=memfabric(Machine(tmp_path), (1, 3, 0)))

    traffic = Traffic()
    source = allocate(SOURCE_BLOCKS * BLOCK, CPU)
    source[:] = filled([block + 1 for block in range(SOURCE_BLOCKS)], BLOCK)
    with (
        SendingSession(
            layout=LAYOUT,
            blocks=(SOURCE_BLOCKS,),
            source=source,
            sizes=ONE,
            identity=RankIdentity(instance_id="p", incarnation="p1"),
            engine=engine(),
            bind_ip="127.0.0.1",
            runtime_dir=runtime_dir,
            context=context,
            clock=SystemClock(),
            threads=2,
        ) as sending,
        ReceivingSession(
            layout=LAYOUT,
            blocks=(DECODE_BLOCKS,),
            slots=SLOTS,
            sizes=ONE,
            identity=RankIdentity(instance_id="d", incarnation="d1"),
            engine=engine(),
            context=context,
            clock=SystemClock(),
            probes=PROBES,
            region=partial(CountedRegion, traffic),
        ) as receiving,
    ):
        yield Pair(sending, receiving, traffic)


def test_kv_slot_and_logprobs_land_on_the_device_and_a_tick_reads_them_in_one_copy(pair: Pair) -> None:
    for room, blocks in ((3, (9, 4)), (7, (20, 21))):
        pair.hand_off(room, blocks)
    pair.until(lambda: len(ranks.got(pair.prefill, Handshaken)) == 2)
    now = pair.clock.now()
    pair.prefill.session.obey(Send(room=3, blocks=((3, 4),), first_token=3, kv_len=8, aux=LOGPROBS), now)
    pair.prefill.session.obey(Send(room=7, blocks=((7, 8),), first_token=7, kv_len=8), now)
    pair.until(lambda: len(pair.arrived) == 2 and len(ranks.got(pair.prefill, Sent)) == 2)
    assert {e.first_token: e.aux for e in pair.arrived} == {3: LOGPROBS, 7: None}
    pool = pair.decode.region_buffer
    assert isinstance(pool, torch.Tensor)
    found = {block: set(pool[block * BLOCK : (block + 1) * BLOCK].tolist()) for block in range(DECODE_BLOCKS)}
    assert {b: values for b, values in found.items() if values != {CANARY}} == {
        9: {4},
        4: {5},
        20: {8},
        21: {9},
    }
    pair.turn()
    assert (set(pair.copies), pair.copies[-1]) == ({0, 1}, 0), "nothing is read where nothing is waited for"


def test_a_library_reads_what_was_computed_and_not_what_is_queued(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that does not sample returns from a step before its device has done it."""
    order: list[str] = []
    plain = Machine.write

    def write(machine: Machine, *rest: Any) -> bool:
        order.append("read")
        return plain(machine, *rest)

    monkeypatch.setattr(torch.cpu, "synchronize", lambda: order.append("settled"))
    monkeypatch.setattr(Machine, "write", write)
    pair.hand_off(3, (9, 4))
    pair.until(lambda: ranks.got(pair.prefill, Handshaken))
    pair.prefill.send(3, 8)
    pair.until(lambda: pair.arrived)
    assert order == ["settled", "read", "read"], "KV, then its slot"


def test_slots_aux_records_and_probes_come_with_one_copy_of_what_is_watched() -> None:
    shape = RegionShape(LAYOUT, (DECODE_BLOCKS,), SLOTS, PROBES)
    traffic = Traffic()
    region = torch.zeros(shape.nbytes, dtype=torch.uint8)
    records = DeviceRecords(on_fake_device(region, traffic), shape)
    for offset, value in (
        (shape.slot_offset(1), 1),
        (shape.aux_offset(1), 2),
        (shape.probe_offset(2), 3),
        (shape.slot_offset(3), 4),
    ):
        region[offset : offset + SLOT_BYTES] = value
    records.refresh(2, 3)
    assert traffic.to_host == 1
    assert set(records.slots[SLOT_BYTES : 2 * SLOT_BYTES]) == {1}
    assert set(records.aux(1)[:SLOT_BYTES]) == {2}
    assert len(records.aux(1)) == AUX_BYTES
    assert set(records.probes[2 * SLOT_BYTES : 3 * SLOT_BYTES]) == {3}
    assert set(records.slots[3 * SLOT_BYTES :]) == {0}, "not looked at"
    records.refresh(0, 0)
    assert traffic.to_host == 1


def test_what_is_registered_begins_at_two_mebibytes_of_the_device(pair: Pair) -> None:
    sender = pair.prefill.session._sender
    region = pair.decode._region
    assert region.address % ALIGNMENT == 0
    assert sender._base % ALIGNMENT == 0  # type: ignore[attr-defined]
    assert len(region.memory) == 0, "no link can write it"
    with pytest.raises(RuntimeError, match="nobody else's to map"):
        _ = region.fd


def test_memory_that_the_device_has_not_is_refused_by_the_setting() -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-tokens / PDCORE_KV_TOKENS: \d+ MiB for the KV cache are too much for cpu"
    ):
        allocate(1 << 60, CPU)


@pytest.mark.parametrize(("protocol", "reaches"), [("tcp", False), ("rdma", True), ("ascend", True)])
def test_several_engines_reach_a_device_only_if_each_does(protocol: str, reaches: bool) -> None:
    mooncake = MooncakeEngine(bind_ip="127.0.0.1", protocol=protocol)
    assert mooncake.caps.reaches_devices is reaches
    assert OfferedEngines([mooncake]).caps.reaches_devices is reaches
    for host_only in (ShmEngine(), TcpEngine(bind_ip="127.0.0.1")):
        assert not host_only.caps.reaches_devices
        assert not OfferedEngines([mooncake, host_only]).caps.reaches_devices
