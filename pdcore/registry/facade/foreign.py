"""An instance whose ranks are all foreign: they register over HTTP, are probed, and stand in the keyspace while they answer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.registry.facade.bodies import Address, RankRegistration, Shared
from pdcore.registry.facade.bootstrap import Differs
from pdcore.registry.facade.documents import MAX_PREFILL_TOKENS
from pdcore.registry.facade.probing import probe, probe_all
from pdcore.registry.facade.rank_table import AskFirst, RankTable, Refusal, occupied
from pdcore.registry.registration import Registration
from pdcore.topology.instance import Instance
from pdcore.topology.records import Compat, InstanceRecord, Json, RankRecord, State

log = telemetry.logger(__name__)

PROTOCOL: Final = "bootstrap-http"
"""How legs of such engines find each other: by the calls of the bootstrap protocol."""
FOREIGN: Final = "foreign"
PROBE_EVERY_S: Final = 2.0
TELL_EVERY_S: Final = 0.05
"""Ranks that register together are put together: the whole record is written at each put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignIdentity:
    """What the parent process knows of the engine. ``url`` is where the engine's own leader answers."""

    instance_id: str
    incarnation: str
    models: tuple[str, ...]
    url: str
    host: str
    bootstrap_port: int
    context_length: int
    machine: str
    boot_id: str
    pid: int


class ForeignRanks:
    """Takes registrations and probes who registered, for the length of an ``async with``.

    Mutable: ``_table``, ``_state`` of the instance, ``_news`` (the table has changed since it was put).
    """

    def __init__(
        self,
        identity: ForeignIdentity,
        registration: Registration,
        *,
        clock: Clock | None = None,
        probe_every_s: float = PROBE_EVERY_S,
    ) -> None:
        self._identity = identity
        self._registration = registration
        self._clock = clock or SystemClock()
        self._probe_every_s = probe_every_s
        self._table = RankTable()
        self._state: State = "starting"
        self._news = asyncio.Event()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(running_beside(self._tell_for_ever()))
        await self._open.enter_async_context(running_beside(self._probe_for_ever()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    @property
    def dp_size(self) -> int | None:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`."""
        return None if self._table.shared is None else self._table.shared.dp_size

    def confirm(self, shown: Instance) -> bool:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`."""
        where = {at: (rank.rank_ip, rank.rank_port) for at, rank in shown.ranks.items()}
        known = {at: (address.ip, address.port) for at, address in self._table.answering.items()}
        return self._table.is_complete and where == known

    async def register(self, rank: RankRegistration) -> None:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`. Accepted also while the store is away."""
        against = self._table.judge(rank)
        if isinstance(against, AskFirst):
            outcome = await probe(against.address)
            self._table.probed(rank.position, against.address, outcome)
            against = self._table.judge(rank)
        if isinstance(against, AskFirst):
            against = occupied(rank.position, against.address)
        if isinstance(against, Refusal):
            log.warning("rank refused", rank=str(rank.position), reason=against.sentence)
            raise Differs(against.field, against.sentence)
        self._table.accept(rank)
        log.info("rank registered", rank=str(rank.position), address=str(rank.address))
        self._news.set()

    async def _probe_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._probe_every_s)
            await self._probe()

    async def _probe(self) -> None:
        addresses = self._table.addresses
        for position, outcome in (await probe_all(addresses)).items():
            address = addresses[position]
            if self._table.probed(position, address, outcome):
                log.warning("rank probed", rank=str(position), address=str(address), outcome=outcome)
                self._news.set()

    async def _tell_for_ever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._put()
            await self._clock.sleep(TELL_EVERY_S)

    def _put(self) -> None:
        shared = self._table.shared
        assert shared is not None
        if self._table.is_complete:
            self._state = "serving"
        ranks = {at: rank_record(self._identity, address) for at, address in self._table.answering.items()}
        self._registration.put(instance_record(self._identity, shared, self._state), ranks)


def instance_record(identity: ForeignIdentity, shared: Shared, state: State) -> InstanceRecord:
    """The instance as the keyspace shows it."""
    extra: dict[str, Json] = (
        {} if shared.max_prefill_tokens is None else {MAX_PREFILL_TOKENS: shared.max_prefill_tokens}
    )
    return InstanceRecord(
        incarnation=identity.incarnation,
        role="prefill",
        group="",
        generation=0,
        models=identity.models,
        url=identity.url,
        bootstrap_host=identity.host,
        bootstrap_port=identity.bootstrap_port,
        protocol=PROTOCOL,
        dp_size=shared.dp_size,
        cp_size=shared.cp_size,
        tp_size=shared.tp_size,
        pp_size=1,
        compat=_compat(identity, shared),
        kv_tokens=0,
        block_size=shared.block_sizes[0],
        machine=identity.machine,
        boot_id=identity.boot_id,
        pid=identity.pid,
        state=state,
        extra=extra,
    )


def rank_record(identity: ForeignIdentity, address: Address) -> RankRecord:
    """A rank as the keyspace shows it; how it transfers is between the engines."""
    return RankRecord(
        incarnation=identity.incarnation,
        rank_ip=address.ip,
        rank_port=address.port,
        transfer={},
        device=FOREIGN,
        machine=address.ip,
    )


def _compat(identity: ForeignIdentity, shared: Shared) -> Compat:
    """What nobody said is the same for all foreign engines, so that they fit each other and no native one."""
    return Compat(
        model_fingerprint=f"{FOREIGN}:{identity.models[0]}",
        context_length=identity.context_length,
        kv_dtype=shared.kv_cache_dtype,
        block_sizes=shared.block_sizes,
        kv_layout=FOREIGN,
        attention=FOREIGN,
        layers=1,
        kv_heads=1,
        head_dim=1,
        transfer_engines=(FOREIGN,),
        wire=0,
        layout=0,
    )
