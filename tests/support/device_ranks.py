"""Ranks as their processes build them, on any device, driven without a leader: what one computes alone, and what two
compute with a hand-off between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import torch
import zmq
from torch import Tensor

from pdcore.clock import SystemClock
from pdcore.engine.device import Device
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.model import loader
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.runner import ModelRunner, Slice
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.roles import RoleParts, Surroundings, open_side
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.transfer.orders import (
    Arrived,
    Expect,
    Handshaken,
    Open,
    PrefillGroup,
    PrefillPeer,
    Send,
    SideEvent,
)
from tests.support.eventually import eventually_now

BLOCK_SIZE: Final = 8
BLOCKS: Final = 64
CONTEXT: Final = 256
Event = TypeVar("Event", bound=SideEvent)


@dataclass(frozen=True, slots=True)
class Generated:
    """Greedy tokens, and the logits ``[tokens, vocab]`` that each was chosen from, on the CPU."""

    tokens: list[int]
    logits: Tensor


class Rank:
    """One rank of an instance of one: its pool, its model, its side of hand-offs."""

    def __init__(self, around: Surroundings, directory: Path, config: ModelConfig) -> None:
        self.role: RoleParts = open_side(around)
        self.pool = KvPool(around.shard, around.group_blocks, self.role.memory)
        self.runner = ModelRunner(loader.load(directory, config, around.device, around.spec.dtype))
        self._dice = random.Random(around.spec.role)
        self._clock = SystemClock()
        self._events: list[SideEvent] = []

    def table(self, tokens: int) -> BlockLists:
        """Some blocks of each group, enough for ``tokens``."""
        return tuple(
            tuple(self._dice.sample(range(BLOCKS), group.blocks_for(tokens)))
            for group in self.pool.layout.groups
        )

    def step(self, tokens: Sequence[int], start: int, table: BlockLists) -> Tensor:
        """Logits after the last of ``tokens``."""
        return self.runner.forward([Slice(tuple(tokens), start, table)], self.pool)[0].cpu()

    def obey(self, order: Expect | Open | Send) -> None:
        self.role.side.obey(order, self._clock.now())

    def heard(self, kind: type[Event]) -> list[Event]:
        """Events of one kind, this turn's among them."""
        self._events += self.role.side.poll(self._clock.now())
        return [event for event in self._events if isinstance(event, kind)]

    @property
    def group(self) -> PrefillGroup:
        """As decode's leader would read it."""
        assert self.role.rank_port is not None, "a prefill rank"
        peer = PrefillPeer(
            instance_id="prefill",
            incarnation="prefill1",
            dp=0,
            cp=0,
            tp=0,
            rank_ip=self.role.rank_ip,
            rank_port=self.role.rank_port,
            transfer=self.role.transfer,
        )
        return PrefillGroup(
            instance_id="prefill",
            incarnation="prefill1",
            dp=0,
            dp_size=1,
            cp_size=1,
            tp_size=1,
            ranks=(peer,),
        )


@contextmanager
def opened(directory: Path, device: Device, runtime_dir: Path, engine: str = "auto") -> Iterator[Ranks]:
    """Ranks of the model in ``directory`` on ``device``, made when they are asked for."""
    with zmq.Context() as context, ExitStack() as stack:
        yield Ranks(directory, device, runtime_dir, engine, stack, context)


@dataclass
class Ranks:
    """See :func:`opened`."""

    directory: Path
    device: Device
    runtime_dir: Path
    engine: str
    stack: ExitStack
    context: zmq.Context[zmq.Socket[bytes]]

    def rank(self, role: str) -> Rank:
        """A new one."""
        config = ModelConfig.from_directory(self.directory)
        around = Surroundings(
            spec=_spec(role, self.directory, self.runtime_dir, self.engine),
            device=self.device,
            stack=self.stack,
            context=self.context,
            layout=config.kv_layout(BLOCK_SIZE, "float32"),
            blocks=BLOCKS,
            limits=SchedulerLimits(
                context_length=CONTEXT,
                max_batch=2,
                max_prefill_tokens=CONTEXT,
                max_queue=4,
                reserved_tokens=0,
                slots=4,
            ),
            vocab_size=config.vocab_size,
        )
        return Rank(around, self.directory, config)

    def alone(self, prompt: Sequence[int], most: int) -> Generated:
        """What one rank generates."""
        rank = self.rank("unified")
        table = rank.table(len(prompt) + most)
        first = rank.step(prompt, 0, table)
        return _go_on(rank, table, len(prompt), first, most)

    def handed_off(self, prompt: Sequence[int], most: int) -> Generated:
        """The prompt computed by one rank, the rest by another."""
        prefill, decode = self.rank("prefill"), self.rank("decode")
        table = decode.table(len(prompt) + most)
        prefill.obey(Expect(room=1, expected_peer="decode1", prompt_len=len(prompt), remaining_ms=60_000))
        decode.obey(
            Open(
                handoff=1,
                room=1,
                prefill=prefill.group,
                blocks=table,
                prompt_len=len(prompt),
                remaining_ms=60_000,
            )
        )
        eventually_now(lambda: (decode.heard(Arrived), prefill.heard(Handshaken))[1], 30, "the handshake")
        source = prefill.table(len(prompt))
        first = prefill.step(prompt, 0, source)
        token = int(first.argmax())
        prefill.obey(Send(room=1, blocks=source, first_token=token, kv_len=len(prompt)))
        eventually_now(lambda: (prefill.heard(Handshaken), decode.heard(Arrived))[1], 30, "the KV")
        [arrived] = decode.heard(Arrived)
        assert (arrived.first_token, arrived.kv_len) == (token, len(prompt))
        return _go_on(decode, table, len(prompt), first, most)


def _go_on(rank: Rank, table: BlockLists, start: int, first: Tensor, most: int) -> Generated:
    logits = [first]
    for position in range(start, start + most - 1):
        logits.append(rank.step([int(logits[-1].argmax())], position, table))
    return Generated([int(row.argmax()) for row in logits], torch.stack(logits))


def _spec(role: str, directory: Path, runtime_dir: Path, engine: str) -> RankSpec:
    return RankSpec(
        role=role,
        instance_id=role,
        incarnation=f"{role}1",
        rank_ip="127.0.0.1",
        dispatch="ipc:///nowhere",
        runtime_dir=str(runtime_dir),
        beat_fd=None,
        model=str(directory),
        device="auto",
        dtype="float32",
        block_size=BLOCK_SIZE,
        kv_tokens=BLOCKS * BLOCK_SIZE,
        max_model_len=None,
        max_batch=2,
        max_prefill_tokens=CONTEXT,
        max_queue=4,
        num_reserved_decode_tokens=0,
        transfer_engine=engine,
        transfer_threads=2,
        torch_threads=None,
        log_format="text",
        log_level="info",
    )
