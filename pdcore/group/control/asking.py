"""What a controller asks over HTTP: of a candidate one real answer, of every router how far it is and what it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from pdcore.topology.topology import Topology

HEADER: Final = "x-pdcore-candidate"
QUESTION: Final = "Is anybody there?"
PROOF_S: Final = 30.0
ROUTER_S: Final = 3.0
MOST_TOKENS: Final = 4
MAX_ANSWER_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """There was no answer that counts, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Asking:
    """How routers are reached. ``headers`` show operators' views."""

    client: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def prove(self, topology: Topology, model: str, proof: str) -> Refusal | None:
        """Ask the candidate through any router that answers. None when it generated something."""
        refusal = Refusal("no router is registered")
        for _, router in sorted(topology.routers.items()):
            said = await self._prove(router.url, model, proof)
            if said is None:
                return None
            refusal = said
        return refusal

    async def _prove(self, url: str, model: str, proof: str) -> Refusal | None:
        body = {"model": model, "prompt": QUESTION, "max_tokens": MOST_TOKENS, "temperature": 0}
        try:
            async with asyncio.timeout(PROOF_S):
                answer = await self.client.post(
                    f"{url}/v1/completions", json=body, headers={HEADER: proof}, timeout=PROOF_S
                )
            if answer.status_code != httpx.codes.OK:
                return Refusal(f"{url} answered {answer.status_code}: {answer.text[:512]}")
            usage = answer.json().get("usage") or {}
            if not usage.get("completion_tokens"):
                return Refusal(f"{url} answered without a token")
        except (httpx.HTTPError, TimeoutError, ValueError, AttributeError) as error:
            return Refusal(f"{url}: {str(error) or type(error).__name__}")
        return None

    async def routers_at(self, topology: Topology, revision: int) -> Refusal | None:
        """None once every router of the view knows the store up to ``revision``."""
        params: dict[str, str | int | float] = {"at_least": revision, "timeout_s": 1.0}
        for name, said in (await self._ask_all(topology, "/pdcore/revision", params)).items():
            if isinstance(said, Refusal):
                return Refusal(f"{name}: {said.why}")
            known = said.get("revision")
            if said.get("store_id") != topology.store_id or not isinstance(known, int) or known < revision:
                return Refusal(f"{name} is at revision {known}, not yet at {revision}")
        return None

    async def load(self, topology: Topology) -> dict[str, int]:
        """How many requests each instance holds, by what the routers say that answer."""
        held: dict[str, int] = {}
        for said in (await self._ask_all(topology, "/pdcore/topology", {})).values():
            instances = {} if isinstance(said, Refusal) else said.get("instances")
            for name, one in (instances if isinstance(instances, dict) else {}).items():
                count = one.get("in_flight") if isinstance(one, dict) else None
                held[name] = held.get(name, 0) + (count if isinstance(count, int) else 0)
        return held

    async def _ask_all(
        self, topology: Topology, path: str, params: Mapping[str, str | int | float]
    ) -> dict[str, dict[str, Any] | Refusal]:
        async with asyncio.TaskGroup() as tasks:
            asked = {
                name: tasks.create_task(self._ask(one.admin_url.rstrip("/") + path, params))
                for name, one in sorted(topology.routers.items())
            }
        return {name: task.result() for name, task in asked.items()}

    async def _ask(self, url: str, params: Mapping[str, str | int | float]) -> dict[str, Any] | Refusal:
        try:
            async with asyncio.timeout(ROUTER_S):
                answer = await self.client.get(url, params=dict(params), headers=dict(self.headers))
            said = json.loads(answer.content[:MAX_ANSWER_BYTES])
        except (httpx.HTTPError, TimeoutError, ValueError, RecursionError) as error:
            return Refusal(str(error) or type(error).__name__)
        if answer.status_code != httpx.codes.OK or not isinstance(said, dict):
            return Refusal(f"answered {answer.status_code}")
        return said
