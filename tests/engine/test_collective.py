"""Ranks as processes: sums and joins reach exactly the members of a group, and no rank waits for ever for another."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed

from pdcore.engine import collective, device
from pdcore.engine.collective import Groups
from pdcore.engine.placement import Sizes
from pdcore.errors import CollectiveFailed
from pdcore.topology.keys import RankPosition
from tests.support.rank_group import HERE, Place, RankGroup

pytestmark = pytest.mark.integration

FIRST, SECOND = RankPosition(0, 0, 0), RankPosition(0, 0, 1)
TIMEOUT_S = 1.0


def listening_addresses() -> set[str]:
    """The addresses on which this process listens."""
    sockets = psutil.Process().net_connections("tcp")
    return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}


def exchange(place: Place) -> dict[str, object]:
    """Every call once, with this rank's number as the tensor."""
    number = float(place.sizes.number(place.position))
    with place.joined() as groups:
        return {
            "tp": (groups.tp.rank, groups.tp.size),
            "cp": (groups.cp.rank, groups.cp.size),
            "sum": groups.tp.all_reduce(torch.full((3,), number)).tolist(),
            "cp_sum": groups.cp.all_reduce(torch.full((1,), number)).tolist(),
            "tp_join": groups.tp.all_gather(torch.full((1, 1), number)).tolist(),
            "cp_join": groups.cp.all_gather(torch.tensor([[number, -number], [9, 9]]).t()).tolist(),
            "half": groups.tp.all_reduce(torch.ones(2, dtype=torch.bfloat16)).tolist(),
            "listening": listening_addresses(),
            "leads": groups.leads,
        }


@pytest.mark.parametrize(
    ("sizes", "across"),
    [(Sizes(dp=2, cp=2, tp=2), False), (Sizes(dp=2, tp=2), True)],
    ids=["one-machine", "several-machines"],
)
def test_each_group_hears_its_members_only_and_nothing_listens_on_every_address(
    tmp_path: Path, sizes: Sizes, across: bool
) -> None:
    with RankGroup(exchange, sizes, tmp_path, across=across) as ranks:
        said = ranks.results()
    for position, words in zip(sizes.positions(), said, strict=True):
        tp = [float(sizes.number(position._replace(tp=tp))) for tp in range(sizes.tp)]
        cp = [float(sizes.number(position._replace(cp=cp))) for cp in range(sizes.cp)]
        assert words == {
            "tp": (position.tp, sizes.tp),
            "cp": (position.cp, sizes.cp),
            "sum": [sum(tp)] * 3,
            "cp_sum": [sum(cp)],
            "tp_join": [[[number]] for number in tp],
            "cp_join": [[[number, 9.0], [-number, 9.0]] for number in cp],
            "half": [2.0, 2.0],
            "listening": {HERE},
            "leads": position.cp == position.tp == 0,
        }


def sums_of_noise(place: Place) -> bytes:
    with place.joined() as groups:
        noise = torch.randn(997, generator=torch.Generator().manual_seed(place.position.tp))
        return groups.tp.all_reduce(noise).numpy().tobytes()


def test_every_rank_gets_the_same_bits(tmp_path: Path) -> None:
    """Ranks that went on with different roundings would drift apart."""
    with RankGroup(sums_of_noise, Sizes(tp=3), tmp_path) as ranks:
        assert len(set(ranks.results())) == 1


def sum_until_it_fails(place: Place) -> tuple[float, str]:
    """Seconds the failing call took, and what it said."""
    with place.joined(timeout_s=TIMEOUT_S) as groups:
        place.say("joined")
        began = time.monotonic()
        try:
            while True:
                began = time.monotonic()
                groups.tp.all_reduce(torch.ones(1))
        except CollectiveFailed as failed:
            return time.monotonic() - began, str(failed)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stands_still_fails_the_others_call(
    tmp_path: Path, fault: signal.Signals
) -> None:
    with RankGroup(sum_until_it_fails, Sizes(tp=2), tmp_path) as ranks:
        assert ranks.result(FIRST) == "joined"
        ranks.signal(SECOND, fault)
        took_s, words = ranks.result(FIRST, 30.0)
    assert words.startswith("all-reduce with the other ranks failed: ")
    if fault is signal.SIGSTOP:
        assert took_s > TIMEOUT_S * 0.5
    assert took_s < TIMEOUT_S + 5


def come_alone(place: Place) -> str:
    try:
        with place.joined(start_s=0.2):
            return "joined"
    except CollectiveFailed as failed:
        return str(failed)


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with RankGroup(come_alone, Sizes(tp=2), tmp_path, absent=(SECOND,)) as ranks:
        assert ranks.result(FIRST, 30.0).startswith("joining with the other ranks failed: ")


def leave_words(place: Place) -> str:
    rendezvous = place.meet()
    rendezvous.publish(f"from/{place.position}", f"tcp://{place.position.tp}")
    found = rendezvous.lookup(f"from/0.0.{1 - place.position.tp}", 30.0)
    rendezvous.publish(f"heard/{place.position}", "")
    if place.position == FIRST:  # across machines the store ends with it
        rendezvous.lookup(f"heard/{SECOND}", 30.0)
    return found


@pytest.mark.parametrize("across", [False, True], ids=["one-machine", "several-machines"])
def test_ranks_leave_each_other_words_before_they_join(tmp_path: Path, across: bool) -> None:
    with RankGroup(leave_words, Sizes(tp=2), tmp_path, across=across) as ranks:
        assert ranks.results() == ["tcp://1", "tcp://0"]


def test_words_that_nobody_leaves_are_a_failure(tmp_path: Path) -> None:
    rendezvous = collective.meet(f"file://{tmp_path}/store", 0, listen_fd=None, within_s=1)
    with pytest.raises(CollectiveFailed, match="rendezvous"):
        rendezvous.lookup("nothing", 0.05)


def test_ranks_that_share_nothing_open_nothing(tmp_path: Path) -> None:
    rendezvous = collective.meet(f"file://{tmp_path}/store", 0, listen_fd=None, within_s=1)
    cpu = device.select("cpu")
    with collective.join(
        rendezvous, RankPosition(1, 0, 0), Sizes(dp=2), device=cpu, ip="192.0.2.1", start_s=1, timeout_s=1
    ) as groups:
        assert groups == Groups.single()
        assert groups.leads
        assert not torch.distributed.is_initialized()
    ones = torch.ones(2)
    assert groups.tp.all_reduce(ones) is ones
    assert groups.cp.all_gather(ones).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(("kind", "backend"), [("npu", "hccl"), ("cuda", "nccl")])
def test_a_devices_collectives_listen_where_the_rank_does(
    monkeypatch: pytest.MonkeyPatch, kind: device.Kind, backend: str
) -> None:
    for name in ("HCCL_IF_IP", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert collective._backend(device.Device(kind, torch.device("cpu")), HERE) == backend
    assert (os.environ["HCCL_IF_IP"], os.environ["NCCL_SOCKET_IFNAME"]) == (HERE, "=lo")
