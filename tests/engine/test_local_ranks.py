"""What the ranks of one machine are told, and how their end is seen."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from pdcore.config import ENGINE, EngineConfig, load
from pdcore.engine.local_ranks import LocalRanks, Machine, how
from pdcore.engine.startup import placement_of
from pdcore.registry.leaders import LeaderWord
from pdcore.registry.registration import Registration
from pdcore.topology.keys import RankPosition
from tests.support.registrations import spec as registrar_spec

pytestmark = pytest.mark.integration

WORD = LeaderWord(
    incarnation="i",
    url="http://u",
    parents="",
    dispatch="ipc:///run/x/d",
    rendezvous="file:///run/x/r",
    shape="",
)


def machine(runtime_dir: Path = Path("/run/x"), **flags: str) -> Machine:
    given = {"role": "decode", "model": "/models/tiny", "instance_id": "mine", **flags}
    config = load(EngineConfig, ENGINE, given, section="engine", environ={})
    return Machine(
        config=config,
        placement=placement_of(config),
        word=WORD,
        instance_id="mine",
        rank_ip="10.0.0.1",
        runtime_dir=runtime_dir,
        rendezvous_fd=None if runtime_dir.exists() else 9,
    )


def test_a_rank_is_told_all_it_needs() -> None:
    here = machine(
        kv_tokens="4096",
        max_batch="7",
        dtype="bfloat16",
        tp="2",
        dp="2",
        torch_threads="3",
        peer_silence_s="90",
    )
    assert here.positions == ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1))
    spec = here.spec(RankPosition(1, 0, 1), 5)
    assert (spec.role, spec.instance_id, spec.incarnation) == ("decode", "mine", "i")
    assert (spec.position, spec.sizes.world, spec.device_index, spec.leads) == ((1, 0, 1), 4, 3, False)
    assert (spec.kv_tokens, spec.max_batch, spec.dtype, spec.torch_threads) == (4096, 7, "bfloat16", 3)
    assert (spec.dispatch, spec.rendezvous, spec.rendezvous_fd) == (WORD.dispatch, WORD.rendezvous, None)
    assert (spec.beat_fd, spec.identity, spec.peer_silence_s) == (5, b"1.0.1", 90)
    assert spec.step_link == "ipc:///run/x/step-1.sock"
    assert here.spec(RankPosition(0, 0, 0), 5).rendezvous_fd == 9


def test_ranks_share_the_cores_unless_told_otherwise() -> None:
    shares = {machine(tp=size).spec(RankPosition(0, 0, 0), None).torch_threads for size in ("1", "2")}
    cores = os.cpu_count() or 1
    assert shares == {cores, max(1, cores // 2)}


def test_a_group_on_two_machines_meets_over_tcp_and_one_on_a_single_machine_does_not() -> None:
    across = machine(tp="4", nnodes="2", node_rank="1")
    assert across.positions == ((0, 0, 2), (0, 0, 3))
    spec = across.spec(RankPosition(0, 0, 2), None)
    assert (spec.step_link, spec.device_index) == ("tcp://10.0.0.1:*", 0)
    apart = machine(dp="2", tp="2", nnodes="2", node_rank="1")
    assert apart.spec(RankPosition(1, 0, 0), None).step_link == "ipc:///run/x/step-1.sock"


async def test_the_first_rank_that_ends_is_told_and_all_are_gone_afterwards(tmp_path: Path) -> None:
    # Rank 0.0.1 exits with status 9, the other one sleeps.
    script = (
        "import sys, msgspec, time\n"
        "spec = msgspec.msgpack.decode(open(int(sys.argv[-1]), 'rb').read())\n"
        "sys.exit(9) if spec['tp'] else time.sleep(600)\n"
    )
    registration = Registration(registrar_spec("etcd://127.0.0.1:1", "i"))
    with LocalRanks((sys.executable, "-c", script)) as ranks:
        ranks.start(machine(tmp_path, tp="2"), registration)
        async with asyncio.timeout(20):
            position, status = await ranks.wait_first_exit()
        pids = [rank.pid for rank in ranks]
    assert (position, how(status), how(-9)) == ((0, 0, 1), "exited with status 9", "was ended by SIGKILL")
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
