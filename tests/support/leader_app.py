"""A leader's HTTP face over real sockets, in the test's own process, with a fake rank behind it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
from starlette.types import ASGIApp

from pdcore.clock import SystemClock
from pdcore.engine.app import create_app
from pdcore.engine.dispatch import Dispatch
from pdcore.engine.engine import Engine
from pdcore.engine.legs import Leg
from pdcore.engine.load import Load
from pdcore.engine.messages import Stats
from pdcore.engine.metrics import Metrics
from pdcore.engine.state import LeaderState
from pdcore.engine.transfer.orders import PrefillGroup, PrefillPeer
from pdcore.errors import ApiError
from pdcore.http_server import answering, listen, port_of
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import Role
from tests.support.fake_rank import READY, Behaviour, FakeRank, silent
from tests.support.letters import VOCAB_SIZE, Letters

PEER = PrefillPeer(
    instance_id="p0",
    incarnation="peer",
    dp=0,
    cp=0,
    tp=0,
    rank_ip="127.0.0.1",
    rank_port=9,
    transfer={"kind": "fake"},
)
GROUP = PrefillGroup(
    instance_id="p0", incarnation="peer", dp=0, dp_size=1, cp_size=1, tp_size=1, ranks=(PEER,)
)
LEG = {"bootstrap_room": 7, "bootstrap_host": "127.0.0.1", "bootstrap_port": 18800}


class OnePeer:
    """Knows one prefill group; ``fault`` is raised instead when it is set."""

    def __init__(self) -> None:
        self.fault: ApiError | None = None
        self.dp_size = 1
        self.asked: list[tuple[Leg, str | None]] = []

    async def prefill(self, leg: Leg, expected: str | None) -> PrefillGroup:
        self.asked.append((leg, expected))
        if self.fault is not None:
            raise self.fault
        return msgspec.structs.replace(GROUP, dp_size=self.dp_size)


@dataclass(frozen=True, slots=True)
class LeaderApp:
    """Everything a test may look at. ``client`` speaks to the real server.

    The newest of ``troubles`` is what is wrong with the ranks; ``drains`` counts how often it was told to drain.
    """

    client: httpx.AsyncClient
    rank: FakeRank
    dispatch: Dispatch
    state: LeaderState
    peers: OnePeer
    port: int
    troubles: list[str | None]
    drains: list[None]

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of ``name`` that carry ``labels``."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in (await self.client.get("/metrics")).text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(w in sample for w in wanted):
                total += float(value)
        return total


@asynccontextmanager
async def leader_app(
    directory: Path,
    role: Role = "unified",
    behaviour: Behaviour = silent,
    *,
    max_body_bytes: int = 1 << 20,
    request_timeout_s: float = 30,
    max_held: int = 64,
    door: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> AsyncIterator[LeaderApp]:
    """A serving leader of ``role``: one rank that behaves so, context 256, cache 4096 tokens, model ``tiny``; its app behind ``door``."""
    address = f"ipc://{directory}/{role}.sock"
    state = LeaderState(role=role, instance_id=f"{role}-0", incarnation="inc", models=("tiny",))
    state.context_length, state.kv_tokens = 256, 4096
    state.enter("serving", "")
    state.announced = True
    peers = OnePeer()
    troubles: list[str | None] = [None]
    drains: list[None] = []
    listener = listen("127.0.0.1", 0, "port")
    port = port_of(listener)
    load, clock = Load(), SystemClock()

    def heard(rank: RankPosition, stats: Stats) -> None:
        load.heard(rank, stats, clock.now())

    with Dispatch(address, [RankPosition(0, 0, 0)], max_held=max_held, heard=heard) as dispatch:
        engine = Engine(
            state=state,
            texts=Letters(),
            ranks=dispatch,
            peers=peers,
            metrics=Metrics(lambda: dispatch.stats, lambda: 0.5),
            load=load,
            clock=clock,
            max_body_bytes=max_body_bytes,
            request_timeout_s=request_timeout_s,
            vocab_size=VOCAB_SIZE,
            serial=itertools.count(),
            trouble=lambda: troubles[-1],
            drain=lambda: drains.append(None),
        )
        async with (
            FakeRank(address, behaviour) as rank,
            answering(door(create_app(engine)), listener),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client,
        ):
            await rank.say(READY)
            await dispatch.wait_ready()
            yield LeaderApp(client, rank, dispatch, state, peers, port, troubles, drains)
