"""What a leader runs: its ranks, the places where they and its other machines meet, and how it hears of their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine.departure import has_lost_a_rank, wait_until
from pdcore.engine.dispatch import Dispatch
from pdcore.engine.ending import RANK_DIED, REFUSED, Ending
from pdcore.engine.load import Load
from pdcore.engine.local_ranks import LocalRanks, Machine, how, with_memfabric_store
from pdcore.engine.meeting import open_meeting
from pdcore.engine.messages import Ready, Stats
from pdcore.engine.parents import FollowerParents
from pdcore.engine.peers import View
from pdcore.engine.records import by_node
from pdcore.engine.startup import Startup, shape_of
from pdcore.engine.vitals import Vitals
from pdcore.registry.desired import Fence
from pdcore.registry.leaders import LEAVE_S, LeaderWord, announcement
from pdcore.registry.registration import Registration
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace, RankPosition

log = telemetry.logger(__name__)

SILENT_TTLS: Final = 2
"""A rank that says nothing for so many lease TTLs is as silent as one that does not beat."""


class OwnInstance:
    """Entered, its ZMQ sockets are bound and known; :meth:`start` starts this machine's ranks; leaving kills them.

    Mutable: ``_ready`` (what ranks said once all had).
    """

    def __init__(
        self, startup: Startup, runtime_dir: Path, rank_command: Sequence[str], clock: Clock
    ) -> None:
        self._startup = startup
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._ready: Mapping[RankPosition, Ready] = {}
        self._open = AsyncExitStack()
        self.ranks = LocalRanks(rank_command)
        self._vitals = Vitals(SILENT_TTLS * startup.config.lease_ttl_s)
        self.load = Load()

    async def __aenter__(self) -> Self:
        startup, placement, secret = self._startup, self._startup.placement, self._startup.config.curve_secret
        silence_s = SILENT_TTLS * startup.config.lease_ttl_s
        async with AsyncExitStack() as stack:
            meeting = stack.enter_context(open_meeting(placement, self._runtime_dir, startup.rank_ip))
            stack.enter_context(self.ranks)
            self.dispatch = stack.enter_context(
                Dispatch(
                    meeting.dispatch,
                    placement.sizes.positions(),
                    max_held=startup.config.max_queue,
                    heard=self._heard,
                    secret=secret,
                )
            )
            self.parents = await stack.enter_async_context(
                FollowerParents(
                    meeting.parents,
                    range(1, placement.nnodes),
                    self._clock,
                    silence_s=silence_s,
                    secret=secret,
                )
            )
            self._open = stack.pop_all()
        self.word = LeaderWord(
            incarnation=startup.identity.incarnation,
            url=startup.identity.url,
            parents=self.parents.address,
            dispatch=self.dispatch.address,
            rendezvous=meeting.rendezvous,
            shape=shape_of(startup.config),
        )
        if placement.nnodes > 1 and secret is None:
            log.warning(
                "anybody who reaches these ports is heard", remedy="PDCORE_CURVE_SECRET on every machine"
            )
        self._machine = Machine(
            config=startup.config,
            placement=placement,
            word=self.word,
            instance_id=startup.identity.instance_id,
            rank_ip=startup.rank_ip,
            runtime_dir=self._runtime_dir,
            rendezvous_fd=meeting.rendezvous_fd,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    def _heard(self, rank: RankPosition, stats: Stats) -> None:
        now = self._clock.now()
        self._vitals.heard(rank, stats, now)
        self.load.heard(rank, stats, now)

    def trouble(self) -> str | None:
        """What is wrong with the ranks now, as a sentence; None when nothing is."""
        return self._vitals.trouble(self._clock.now())

    @property
    def ready(self) -> Mapping[RankPosition, Ready]:
        """What every rank said; empty until all have."""
        return self._ready

    @property
    def own_ready(self) -> Mapping[RankPosition, Ready]:
        """What the ranks of this machine said."""
        return by_node(self._startup.placement, self._ready)[0]

    async def start(self, registration: Registration, store: Store) -> None:
        """Start this machine's ranks, watched by its registrar."""
        self._machine = await with_memfabric_store(self._machine, store)
        self.ranks.start(self._machine, registration)

    async def wait_ready(self) -> None:
        """Return once every rank on every machine is. ConfigError when one refuses to start."""
        self._ready = dict(await self.dispatch.wait_ready())

    def register_others(self) -> None:
        """Have the other machines register their ranks."""
        self.parents.register(by_node(self._startup.placement, self._ready))

    async def announce(self, store: Store) -> None:
        """Until cancelled: say in the keyspace where the other machines find this one, if there are any."""
        if self._startup.placement.nnodes == 1:
            return
        identity, config = self._startup.identity, self._startup.config
        fence = Fence(
            keyspace=Keyspace(cluster=config.cluster),
            instance_id=identity.instance_id,
            incarnation=identity.incarnation,
        )
        standing = announcement(store, fence, self.word, ttl_s=config.lease_ttl_s, clock=self._clock)
        try:
            await standing.keep()
        finally:
            async with asyncio.timeout(LEAVE_S):
                await standing.withdraw()

    async def watch_ranks(self) -> Ending:
        """How this machine's first rank ended."""
        rank, status = await self.ranks.wait_first_exit()
        refused = status == REFUSED and not self._ready
        why = f"rank {rank} {how(status)}"
        return Ending(status=REFUSED if refused else RANK_DIED, why=why, departure="died")

    async def watch_parents(self) -> Ending:
        """How the first other machine was lost, by what it says."""
        return Ending(status=RANK_DIED, why=await self.parents.watch(), departure="died")

    async def watch_departure(self, view: View) -> Ending:
        """The keyspace hears first of another machine's parent that died."""
        name, incarnation = self._startup.identity.instance_id, self._startup.identity.incarnation
        await wait_until(view, lambda seen: has_lost_a_rank(seen, name, incarnation))
        return Ending(status=RANK_DIED, why="a rank's record was withdrawn because it died", departure="died")

    async def end(self, ending: Ending) -> None:
        """Tell the other machines that it is over."""
        await self.parents.end(ending.status, ending.why)

    async def stop(self) -> None:
        """End this machine's ranks in order; those that do not are killed."""
        self.dispatch.stop()
        await self.ranks.reap()
