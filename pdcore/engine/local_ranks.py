"""The ranks of one machine, as children of its parent process: their specs, their start, their end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.config import EngineConfig
from pdcore.engine.memfabric_store import serving as memfabric_store
from pdcore.engine.placement import Placement
from pdcore.engine.process import beside
from pdcore.engine.rank_process import RANK_COMMAND, RankProcess
from pdcore.engine.rank_spec import RankSpec
from pdcore.registry.leaders import LeaderWord
from pdcore.registry.registration import Registration
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace, RankPosition

RANK_STOP_S: Final = 3.0
MEMFABRIC: Final = "memfabric"

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the ranks of one machine have in common. ``word`` is what the leader says to all of its machines.

    ``rendezvous_fd`` is the socket that listens at the rendezvous, on the leader's machine and for several machines only.
    """

    config: EngineConfig
    placement: Placement
    word: LeaderWord
    instance_id: str
    rank_ip: str
    runtime_dir: Path
    rendezvous_fd: int | None = None

    @property
    def positions(self) -> tuple[RankPosition, ...]:
        """The ranks of this machine."""
        return self.placement.on_node(self.config.node_rank)

    def spec(self, position: RankPosition, beat_fd: int | None) -> RankSpec:
        """What one of its ranks is told."""
        config, sizes = self.config, self.placement.sizes
        first = position == (0, 0, 0)
        return RankSpec(
            role=config.role,
            instance_id=self.instance_id,
            incarnation=self.word.incarnation,
            dp=position.dp,
            cp=position.cp,
            tp=position.tp,
            dp_size=sizes.dp,
            cp_size=sizes.cp,
            tp_size=sizes.tp,
            device_index=self.placement.device_of(position),
            rank_ip=self.rank_ip,
            rendezvous=self.word.rendezvous,
            rendezvous_fd=self.rendezvous_fd if first else None,
            step_link=self._step_link(position),
            curve_secret=config.curve_secret,
            dispatch=self.word.dispatch,
            runtime_dir=str(self.runtime_dir),
            beat_fd=beat_fd,
            model=str(config.model.absolute()),
            device=config.device,
            dtype=config.dtype,
            block_size=config.block_size,
            prefix_cache=config.prefix_cache == "on",
            per_chunk_sending=config.per_chunk_sending == "on",
            kv_tokens=config.kv_tokens,
            max_model_len=config.max_model_len,
            max_batch=config.max_batch,
            max_prefill_tokens=config.max_prefill_tokens,
            max_queue=config.max_queue,
            num_reserved_decode_tokens=config.num_reserved_decode_tokens,
            fence_s=2.0 * config.lease_ttl_s,
            transfer_engine=config.transfer_engine,
            transfer_secret=config.transfer_secret,
            mooncake_protocol=config.mooncake_protocol,
            mooncake_device=config.mooncake_device,
            memfabric_protocol=config.memfabric_protocol,
            memfabric_store=config.memfabric_store,
            transfer_threads=config.transfer_threads,
            peer_silence_s=config.peer_silence_s,
            torch_threads=config.torch_threads or self._share_of_cores(),
            log_format=config.log_format,
            log_level=config.log_level,
        )

    def _step_link(self, position: RankPosition) -> str:
        """Where the DP leader of that rank's group listens: a unix socket when the whole group is on this machine."""
        group = [rank for rank in self.placement.sizes.positions() if rank.dp == position.dp]
        if len({self.placement.node_of(rank) for rank in group}) == 1:
            return f"ipc://{self.runtime_dir}/step-{position.dp}.sock"
        return f"tcp://{_bracketed(self.rank_ip)}:*"

    def _share_of_cores(self) -> int:
        return max(1, (os.cpu_count() or 1) // len(self.positions))


async def with_memfabric_store(machine: Machine, store: Store) -> Machine:
    """``machine``, told where memfabric's store is, if it moves KV by memfabric and nobody has said where."""
    config = machine.config
    if config.transfer_engine != MEMFABRIC or config.memfabric_store is not None:
        return machine
    found = await memfabric_store.find(store, Keyspace(cluster=config.cluster))
    return replace(machine, config=replace(config, memfabric_store=found))


class LocalRanks:
    """Use as ``with LocalRanks(machine) as ranks``; leaving kills what still runs and reaps it."""

    def __init__(self, command: Sequence[str] = RANK_COMMAND) -> None:
        self._command = command
        self._ranks: list[RankProcess] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()  # all at once: they need not wait for each other
        self._open.close()

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(self._ranks)

    def start(self, machine: Machine, registration: Registration) -> None:
        """Start every rank of ``machine``, watched by its registrar."""
        for position in machine.positions:
            beat_fd = registration.beat_pipe(position)
            try:
                spec = machine.spec(position, beat_fd)
                rank = self._open.enter_context(RankProcess(spec, self._command))
            finally:
                os.close(beat_fd)
            self._ranks.append(rank)
            registration.watch_process(position, rank.pidfd)
            log.info("rank started", rank=str(position), pid=rank.pid)

    async def wait_first_exit(self) -> tuple[RankPosition, int]:
        """The first rank that ends, and its status as :mod:`subprocess` gives it."""
        ended: asyncio.Queue[tuple[RankPosition, int]] = asyncio.Queue()

        async def watch(rank: RankProcess) -> None:
            ended.put_nowait((rank.position, await rank.wait_exit()))

        async with beside(*map(watch, self._ranks)):
            return await ended.get()

    async def reap(self) -> None:
        """Return once all have ended; those that take longer than they may are killed."""
        try:
            async with asyncio.timeout(RANK_STOP_S):
                for rank in self._ranks:
                    await rank.wait_exit()
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """SIGKILL for all that run."""
        for rank in self._ranks:
            rank.kill()


def how(status: int) -> str:
    """How a process with this status ended."""
    if status >= 0:
        return f"exited with status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def _bracketed(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
