"""A rank process, started by its leader as ``python -m pdcore.engine.rank --spec-fd N``; not meant for people.

It loads the model, registers its memory with the transfer engine, says ``Ready`` and turns its loop. It dies with its
leader, leaves the terminal's signals to it, and exits 2 when what it was told to run cannot work, having told the
leader the sentence.
"""

from __future__ import annotations

import ctypes
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
from pdcore.engine import device as devices
from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.kv.layout import LAYOUT_VERSION
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.loop import RankLoop
from pdcore.engine.messages import Failed, Ready
from pdcore.engine.model import loader
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.fingerprint import fingerprint
from pdcore.engine.model.runner import ModelRunner
from pdcore.engine.model_step import ModelStep
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.roles import RoleParts, Surroundings, open_role
from pdcore.engine.scheduler.base import SchedulerLimits
from pdcore.engine.transfer.wire import WIRE_VERSION
from pdcore.errors import ConfigError
from pdcore.topology.codec import compat_document
from pdcore.topology.records import Compat

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
    with zmq.Context() as context, LeaderLink(context, spec.dispatch, spec.identity) as leader:
        try:
            serve(spec, context, leader)
        except ConfigError as wrong:
            leader.send(Failed(request_id="", code="internal", message=str(wrong)))
            sys.exit(2)


def serve(spec: RankSpec, context: zmq.Context[zmq.Socket[bytes]], leader: LeaderLink) -> None:
    """Load, say ``Ready``, and turn the loop until the leader says stop. ConfigError before ``Ready`` only."""
    torch.set_num_threads(spec.torch_threads or os.cpu_count() or 1)
    device = devices.select(spec.device)
    directory = Path(spec.model)
    config = ModelConfig.from_directory(directory)
    layout = config.kv_layout(spec.block_size, spec.dtype)
    blocks = spec.kv_tokens // spec.block_size
    limits = _limits(spec, config)
    model = loader.load(directory, config, device, spec.dtype)
    with ExitStack() as stack:
        accounting = BlockPool(blocks)
        around = Surroundings(
            spec=spec,
            stack=stack,
            context=context,
            layout=layout,
            pool=accounting,
            limits=limits,
            vocab_size=config.vocab_size,
        )
        role = open_role(around)
        pool = KvPool(layout, blocks, role.memory)
        runner = ModelRunner(model)
        compat = _compat(spec, config, directory, limits.context_length)
        leader.send(_ready(spec, role, compat, kv_tokens=blocks * spec.block_size, device=str(device)))
        _log.info("rank ready", kv_blocks=blocks, kv_bytes=blocks * layout.block_bytes, device=str(device))
        RankLoop(
            scheduler=role.scheduler,
            pool=accounting,
            handoffs=role.handoffs,
            model=ModelStep(runner, pool),
            leader=leader,
            beat_fd=_beat_descriptor(spec),
            clock=SystemClock(),
        ).run()


def _limits(spec: RankSpec, config: ModelConfig) -> SchedulerLimits:
    context = min(config.context_length, spec.max_model_len or config.context_length)
    return SchedulerLimits(
        block_size=spec.block_size,
        context_length=context,
        max_batch=spec.max_batch,
        max_prefill_tokens=spec.max_prefill_tokens,
        max_queue=spec.max_queue,
        reserved_tokens=spec.num_reserved_decode_tokens,
        slots=2 * spec.max_batch,
    )


def _compat(spec: RankSpec, config: ModelConfig, directory: Path, context_length: int) -> Compat:
    return Compat(
        model_fingerprint=fingerprint(directory, spec.dtype),
        context_length=context_length,
        kv_dtype=spec.dtype,
        block_sizes=(spec.block_size,),
        kv_layout="block-major",
        attention="gqa",
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        transfer_engines=("shm",),
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
        sys.exit(70)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    main()
