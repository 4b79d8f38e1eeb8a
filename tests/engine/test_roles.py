"""What a rank announces works before it is announced: ``Ready`` carries what opening a role returned, nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from pdcore.engine.device import HOST
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.roles import Surroundings, decider, open_side
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.transfer.choose import read_offers

pytestmark = pytest.mark.integration

BLOCKS = 4
LAYOUT = KvLayout.dense(layers=2, kv_heads=1, head_dim=4, block_size=16, itemsize=4, dtype_name="float32")
LIMITS = SchedulerLimits(
    context_length=64,
    max_batch=2,
    max_prefill_tokens=16,
    max_queue=4,
    reserved_tokens=0,
    slots=4,
)


def spec(role: str, directory: Path) -> RankSpec:
    return RankSpec(
        role=role,
        instance_id="u",
        incarnation="i",
        rank_ip="127.0.0.1",
        dispatch="ipc:///nowhere",
        runtime_dir=str(directory),
        beat_fd=None,
        model="m",
        device="cpu",
        dtype="float32",
        block_size=16,
        kv_tokens=64,
        max_model_len=None,
        max_batch=2,
        max_prefill_tokens=16,
        max_queue=4,
        num_reserved_decode_tokens=0,
        transfer_threads=1,
        torch_threads=None,
        log_format="text",
        log_level="info",
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def around(role: str, directory: Path, stack: ExitStack) -> Surroundings:
    return Surroundings(
        spec=spec(role, directory),
        device=HOST,
        stack=stack,
        context=stack.enter_context(zmq.Context()),
        layout=LAYOUT,
        blocks=BLOCKS,
        limits=LIMITS,
        vocab_size=32,
    )


def test_a_prefill_rank_listens_where_its_record_will_say(tmp_path: Path, stack: ExitStack) -> None:
    role = open_side(around("prefill", tmp_path, stack))
    assert role.rank_port is not None
    socket.create_connection((role.rank_ip, role.rank_port), timeout=2).close()
    offers = read_offers(role.transfer)
    assert sorted(offers) == ["shm", "tcp"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(2)
        peer.connect(str(offers["shm"]["socket"]))
    port = offers["tcp"]["port"]
    assert isinstance(port, int)
    socket.create_connection((str(offers["tcp"]["host"]), port), timeout=2).close()
    KvPool(LAYOUT, (BLOCKS,), role.memory)


@pytest.mark.parametrize("role_name", ["decode", "unified"])
def test_a_rank_that_nobody_connects_to_has_its_memory(
    role_name: str, tmp_path: Path, stack: ExitStack
) -> None:
    role = open_side(around(role_name, tmp_path, stack))
    assert (role.rank_port, role.transfer) == (None, {})
    assert len(role.memory) == BLOCKS * LAYOUT.block_bytes
    KvPool(LAYOUT, (BLOCKS,), role.memory)


@pytest.mark.parametrize("role_name", ["prefill", "decode", "unified"])
def test_a_role_decides_with_the_blocks_it_was_given(
    role_name: str, tmp_path: Path, stack: ExitStack
) -> None:
    decides = decider(around(role_name, tmp_path, stack))
    assert decides.blocks.total == (BLOCKS,)
    assert decides.scheduler.plan(0).batch == ()
