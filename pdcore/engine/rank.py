"""A rank process, started by its leader as ``python -m pdcore.engine.rank --spec-fd N``; not meant for people.

It meets the other ranks, loads its part of the model, registers its memory with the transfer engine, says ``Ready`` and
turns its loop. It dies with its parent, leaves the terminal's signals to it, exits 2 when what it was told to run cannot
work, having told the leader the sentence, and 70 when it cannot go on with the other ranks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click
import msgspec
import torch
import zmq

from pdcore import telemetry
from pdcore.clock import SystemClock
from pdcore.engine import collective
from pdcore.engine import device as devices
from pdcore.engine.collective import Groups, Rendezvous
from pdcore.engine.device import Device
from pdcore.engine.executing import ExecutorLoop
from pdcore.engine.kv.layout import LAYOUT_VERSION
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.leader_link import LeaderLink, LeaderStalled
from pdcore.engine.loop import RankLoop
from pdcore.engine.messages import Failed, Ready
from pdcore.engine.model import loader
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.fingerprint import fingerprint
from pdcore.engine.model.runner import ModelRunner
from pdcore.engine.model.shard import Shard
from pdcore.engine.model_step import ModelStep
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.reporting import Beats
from pdcore.engine.roles import RoleParts, Surroundings, decider, open_side
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.step_link import GroupBroken, StepFollower, StepLeader
from pdcore.engine.transfer.choose import engine_names
from pdcore.engine.transfer.wire import WIRE_VERSION
from pdcore.errors import CollectiveFailed, ConfigError
from pdcore.topology.codec import compat_document
from pdcore.topology.records import Compat

START_S: Final = 300.0
"""How long the ranks of an instance may be apart in starting; each loads its part of the model meanwhile."""
COLLECTIVE_TIMEOUT_S: Final = 20.0
RANK_BROKEN: Final = 70
_PR_SET_PDEATHSIG: Final = 1

_log = telemetry.logger(__name__)


@click.command(help=__doc__)
@click.option("--spec-fd", type=int, required=True, help="Inherited pipe that holds one RankSpec.")
def main(spec_fd: int) -> None:
    _die_with_parent()
    with os.fdopen(spec_fd, "rb") as pipe:
        spec = msgspec.msgpack.decode(pipe.read(), type=RankSpec)
    telemetry.configure(
        spec.log_format,
        spec.log_level,
        role=spec.role,
        instance_id=spec.instance_id,
        incarnation=spec.incarnation,
        rank=spec.identity.decode(),
    )
    with (
        zmq.Context() as context,
        LeaderLink(context, spec.dispatch, spec.identity, secret=spec.curve_secret) as leader,
    ):
        try:
            serve(spec, context, leader)
        except ConfigError as wrong:
            leader.send(Failed(request_id="", code="internal", message=str(wrong)))
            sys.exit(2)
        except (CollectiveFailed, GroupBroken, LeaderStalled) as broken:
            _log.error("rank cannot go on", reason=str(broken))
            sys.exit(RANK_BROKEN)


def serve(spec: RankSpec, context: zmq.Context[zmq.Socket[bytes]], leader: LeaderLink) -> None:
    """Load, say ``Ready``, and turn the loop until the leader says stop. ConfigError before ``Ready`` only."""
    torch.set_num_threads(spec.torch_threads or os.cpu_count() or 1)
    device = devices.select(spec.device, spec.device_index)
    directory = Path(spec.model)
    config = ModelConfig.from_directory(directory)
    layout = config.kv_layout(spec.block_size, spec.dtype)
    blocks = spec.kv_tokens // spec.block_size
    limits = _limits(spec, config)
    with ExitStack() as stack:
        rendezvous, groups = _meet(spec, device, stack)
        shard = Shard(spec.tp, spec.tp_size)
        model = loader.load(directory, config, device, spec.dtype, shard=shard)
        around = Surroundings(
            spec=spec,
            device=device,
            stack=stack,
            context=context,
            layout=layout,
            blocks=blocks,
            limits=limits,
            vocab_size=config.vocab_size,
        )
        role = open_side(around)
        pool = _pool(around, role)
        turn = _loop(around, role, rendezvous, ModelStep(ModelRunner(model, groups), pool), leader)
        compat = _compat(spec, config, directory, limits.context_length)
        leader.send(_ready(spec, role, compat, kv_tokens=blocks * spec.block_size, device=str(device)))
        _log.info("rank ready", kv_blocks=blocks, kv_bytes=around.pool_bytes, device=str(device))
        gc.collect()  # what is here stays: looking through torch's objects again would stop the loop for 100 ms
        gc.freeze()
        _give_memory_back()
        _let_messages_wait()
        turn.run()


def _give_memory_back() -> None:
    """Loading leaves holes in the heap, which the C library keeps unless it is asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _let_messages_wait() -> None:
    """ZeroMQ's threads take a CPU that is free, and none from the loop: whoever wakes one, to send a token, goes on.

    Without this the first token of a request travels before its second is begun, which costs that one a millisecond
    where CPUs are few.
    """
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().startswith("ZMQ"):
            os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def _pool(around: Surroundings, role: RoleParts) -> KvPool:
    try:
        return KvPool(around.shard, around.group_blocks, role.memory)
    except ValueError as wrong:
        where = f"--block-size / PDCORE_BLOCK_SIZE: {around.spec.block_size} tokens"
        raise ConfigError(f"{where} do not suit this model: {wrong}") from wrong


def _meet(spec: RankSpec, device: Device, stack: ExitStack) -> tuple[Rendezvous | None, Groups]:
    """Where the ranks of this instance leave each other words, and what they compute together."""
    if spec.sizes.group == 1:
        return None, Groups.single()
    rendezvous = collective.meet(
        spec.rendezvous,
        spec.sizes.number(spec.position),
        listen_fd=spec.rendezvous_fd,
        within_s=START_S,
    )
    joined = collective.join(
        rendezvous,
        spec.position,
        spec.sizes,
        device=device,
        ip=spec.rank_ip,
        start_s=START_S,
        timeout_s=COLLECTIVE_TIMEOUT_S,
    )
    return rendezvous, stack.enter_context(joined)


def _loop(
    around: Surroundings,
    role: RoleParts,
    rendezvous: Rendezvous | None,
    model: ModelStep,
    leader: LeaderLink,
) -> RankLoop | ExecutorLoop:
    """The loop of a DP leader, joined by its other ranks, or of one of those, connected."""
    spec, stack, clock = around.spec, around.stack, SystemClock()
    beats = Beats(_beat_descriptor(spec))
    word = f"step_link/{spec.dp}"
    if not spec.leads:
        assert rendezvous is not None, "a DP group of several ranks meets"
        address = rendezvous.lookup(word, START_S)
        follower = StepFollower(around.context, address, spec.identity, secret=spec.curve_secret)
        return ExecutorLoop(
            side=role.side,
            group=stack.enter_context(follower),
            model=model,
            leader=leader,
            beats=beats,
            clock=clock,
        )
    group = stack.enter_context(
        StepLeader(around.context, spec.step_link, spec.group[1:], secret=spec.curve_secret)
    )
    if rendezvous is not None:
        rendezvous.publish(word, group.address)
        group.join(START_S, clock)
    return RankLoop(
        spec.position,
        decider(around),
        side=role.side,
        group=group,
        model=model,
        leader=leader,
        beats=beats,
        clock=clock,
    )


def _limits(spec: RankSpec, config: ModelConfig) -> SchedulerLimits:
    context = min(config.context_length, spec.max_model_len or config.context_length)
    return SchedulerLimits(
        context_length=context,
        max_batch=spec.max_batch,
        max_prefill_tokens=spec.max_prefill_tokens,
        max_queue=spec.max_queue,
        reserved_tokens=spec.num_reserved_decode_tokens,
        slots=2 * spec.max_batch,
        fence_s=spec.fence_s,
    )


def _compat(spec: RankSpec, config: ModelConfig, directory: Path, context_length: int) -> Compat:
    layout = config.kv_layout(spec.block_size, spec.dtype)
    return Compat(
        model_fingerprint=fingerprint(directory, spec.dtype),
        context_length=context_length,
        kv_dtype=spec.dtype,
        block_sizes=(spec.block_size,),
        kv_layout=f"block-major/{layout.fingerprint()}",
        attention=config.attention,
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        transfer_engines=engine_names(spec.transfer_engine),
        wire=WIRE_VERSION,
        layout=LAYOUT_VERSION,
    )


def _ready(spec: RankSpec, role: RoleParts, compat: Compat, *, kv_tokens: int, device: str) -> Ready:
    return Ready(
        dp=spec.dp,
        cp=spec.cp,
        tp=spec.tp,
        pid=os.getpid(),
        rank_ip=role.rank_ip,
        rank_port=role.rank_port,
        transfer=role.transfer,
        device=device,
        kv_tokens=kv_tokens,
        compat=dict(compat_document(compat)),
    )


def _beat_descriptor(spec: RankSpec) -> int | None:
    if spec.beat_fd is not None:
        os.set_blocking(spec.beat_fd, False)
    return spec.beat_fd


def _die_with_parent() -> None:
    """SIGKILL when the leader ends, however it ends; its signals are not for us."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(RANK_BROKEN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    main()
