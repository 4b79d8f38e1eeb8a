"""A router over engines of one protocol, and what must hold after whatever happened to a request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import httpx

from pdcore.topology.records import InstanceRecord, Role
from tests.router.conformance.engines import (
    ENGINES,
    EVENTS,
    MooncakeDecode,
    Plane,
    SpeakingEngine,
    UnifiedEngine,
)
from tests.router.fleet import Fleet, record, register, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION

SOON_S: Final = 5.0
PAIRED: Final = tuple(ENGINES)
PROTOCOLS: Final = (*PAIRED, "unified")


class Rig:
    """Engines by name: ``p0 …`` prefill, ``d0 …`` decode, or ``u0``."""

    def __init__(self, protocol: str, fleet: Fleet, engines: dict[str, SpeakingEngine]) -> None:
        self.protocol = protocol
        self.fleet = fleet
        self.engines = engines

    def __getitem__(self, name: str) -> SpeakingEngine:
        return self.engines[name]

    async def ask(self, *, stream: bool = False, **fields: Any) -> httpx.Response:
        """One completion."""
        return await self.fleet.post({"prompt": "hi", "stream": stream, **fields})

    async def is_served(self, *, stream: bool = False) -> None:
        """A plain request is answered in full, and no engine had anything to say against it."""
        before = [len(engine.refused) for engine in self.engines.values()]
        answer = await self.ask(stream=stream)
        assert answer.status_code == 200, answer.text
        assert answer.content == b"".join(EVENTS) if stream else answer.json() == COMPLETION
        assert [len(engine.refused) for engine in self.engines.values()] == before

    @property
    def asked(self) -> list[str]:
        """The names of the engines that were asked to work, in no order."""
        return [name for name, engine in self.engines.items() for _ in engine.seen]

    async def invariants(self) -> None:
        """Nothing of any request is left: no leg at an engine, no count and no address in the router."""
        serving, lifecycle = self.fleet.serving, self.fleet.lifecycle

        def nothing_is_left() -> bool:
            at_engines = any(engine.open_now for engine in self.engines.values())
            in_router = serving.ledger.total or lifecycle.requests or len(serving.contacts.callbacks)
            return not (at_engines or in_router)

        await eventually(nothing_is_left, SOON_S, "nothing is left of the request")

    async def restarts(self, name: str, incarnation: str) -> None:
        """Another start of the engine ``name`` behind the same address, as the keyspace tells of it."""
        engine = self.engines[name]
        await engine.__aexit__(None, None, None)
        await engine.__aenter__()
        engine.name = f"{name}-{incarnation}"
        engine.health = fake.answer(200, {"status": "ok", "incarnation": incarnation})
        made = _record(self.protocol, _role(name), engine)._replace(incarnation=incarnation)
        await register(self.fleet.store, name, made)
        await self.fleet.sees(name, incarnation)
        for one in self.engines.values():
            if isinstance(one, MooncakeDecode):
                one.engine_ids = (*one.engine_ids, engine.name)


@asynccontextmanager
async def rig(protocol: str, *, prefills: int = 1, decodes: int = 1, **changes: Any) -> AsyncIterator[Rig]:
    """``protocol``'s engines, registered, with a router in front."""
    async with running_fleet(**changes) as fleet, AsyncExitStack() as stack:
        engines = _engines(protocol, prefills, decodes)
        for name, engine in engines.items():
            await stack.enter_async_context(engine)
            await register(fleet.store, name, _record(protocol, _role(name), engine))
            await fleet.sees(name, "i1")
        yield Rig(protocol, fleet, engines)
        for engine in engines.values():
            engine.release.set()


def _engines(protocol: str, prefills: int, decodes: int) -> dict[str, SpeakingEngine]:
    if protocol == "unified":
        return {"u0": UnifiedEngine(name="u0")}
    plane, (prefill, decode) = Plane(), ENGINES[protocol]
    found: dict[str, SpeakingEngine] = {}
    found |= {name: prefill(plane=plane, name=name) for name in (f"p{n}" for n in range(prefills))}
    names = tuple(found)
    found |= {name: decode(plane=plane, name=name) for name in (f"d{n}" for n in range(decodes))}
    for engine in found.values():
        if isinstance(engine, MooncakeDecode):
            engine.engine_ids = names
    return found


def _role(name: str) -> Role:
    roles: dict[str, Role] = {"p": "prefill", "d": "decode", "u": "unified"}
    return roles[name[0]]


def _record(protocol: str, role: Role, engine: SpeakingEngine) -> InstanceRecord:
    if role != "prefill":
        return record(role, engine.url, protocol=protocol)
    return record(role, engine.url, protocol=protocol, bootstrap_host="127.0.0.1", bootstrap_port=engine.port)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The public error of an answer, or of the last event of its stream."""
    document = answer.content
    if answer.headers["content-type"].startswith("text/event-stream"):
        document = answer.content.split(b"data: ")[-1]
    found: dict[str, Any] = json.loads(document)["error"]
    return found
