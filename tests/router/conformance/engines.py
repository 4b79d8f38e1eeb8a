"""Fake prefill and decode engines that speak a handshake the way real ones do, and break where they are told to.

An engine that is not told otherwise checks what it was asked, as a strict engine would, waits for its peer where a real
one waits for KV, and answers. :attr:`SpeakingEngine.faults` are what it does wrong, one per request: each turns the
script of a good answer into another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests.router.conformance.strict import contradictions, not_a_prefill
from tests.support import fake_engines as fake
from tests.support.fake_engines import COMPLETION, DONE, MARK, Do, FakeEngine, Hang, Script, Seen, event

Fault = Callable[[Script], Script]

EVENTS: Final = (event("Pa"), event("ris"), event("", "stop"), DONE)
CALL_S: Final = 5.0
TRANSFER: Final = "kv_transfer_params"


class HandOff:
    """One request's KV on its way: prefill has it, decode wants it."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.computed = asyncio.Event()


@dataclass
class Plane:
    """How engines of one fleet find each other's hand-offs: by room, block, or transfer id, as the protocol has it."""

    found: dict[object, HandOff] = field(default_factory=dict)

    def hand_off(self, name: object) -> HandOff:
        return self.found.setdefault(name, HandOff())


@dataclass
class SpeakingEngine(FakeEngine):
    """One engine of a protocol. ``name`` is its engine id, ``incarnation`` what its health reports.

    It does not say what it serves: the question is answered with 404 and is no request.
    """

    scripts: list[Script] = field(default_factory=list)
    plane: Plane = field(default_factory=Plane)
    name: str = "e"
    faults: list[Fault] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def script(self) -> Script:
        seen = self.seen[-1]
        if seen.path == "/v1/models":
            self.seen.pop()
            return fake.answer(404, {})
        wrong = self.complaints(seen)
        self.refused += wrong
        good = fake.answer(400, {"error": {"message": "; ".join(wrong)}}) if wrong else self.good(seen)
        return self.faults.pop(0)(good) if self.faults else good

    def complaints(self, seen: Seen) -> list[str]:
        """What this engine would answer 400 for."""
        return contradictions(seen.json)

    def good(self, seen: Seen) -> Script:
        """What it does when all is well."""
        raise NotImplementedError


def answering(seen: Seen, *before: fake.Step, mark: bool) -> Script:
    """Decode's good answer, after ``before``."""
    if seen.json.get("stream"):
        return (*before, *fake.stream(*EVENTS, mark=mark))
    return (*before, *fake.answer(200, COMPLETION, MARK if mark else None))


class UnifiedEngine(SpeakingEngine):
    """Computes both phases."""

    def good(self, seen: Seen) -> Script:
        return answering(seen, mark=False)


class BootstrapPrefill(SpeakingEngine):
    """Native: starts no room before decode has asked for it, and answers when it has handed over."""

    def good(self, seen: Seen) -> Script:
        hand_off = self.plane.hand_off(_rooms(seen))
        accepted = fake.answer(200, {"request_id": "r", "bootstrap_room": 1, "accepted": True})
        return (Hang(hand_off.wanted.wait), Do(_setting(hand_off.computed)), *accepted)


class BootstrapDecode(SpeakingEngine):
    """Native: asks prefill at once, and says when the KV is there."""

    def complaints(self, seen: Seen) -> list[str]:
        rooms = _rooms(seen)
        return [*super().complaints(seen), *(["a room twice"] if len(set(rooms)) < len(rooms) else [])]

    def good(self, seen: Seen) -> Script:
        hand_off = self.plane.hand_off(_rooms(seen))
        return answering(seen, Do(_setting(hand_off.wanted)), Hang(hand_off.computed.wait), mark=True)


def _rooms(seen: Seen) -> tuple[int, ...]:
    rooms = seen.json["bootstrap_room"]
    return tuple(rooms) if isinstance(rooms, list) else (rooms,)


class VllmPrefill(SpeakingEngine):
    """What every prefill of vLLM checks: that it is to keep the KV of one token."""

    def complaints(self, seen: Seen) -> list[str]:
        params = seen.json.get(TRANSFER) or {}
        asked = params.get("do_remote_decode") is True and params.get("do_remote_prefill") is False
        wrong = [] if asked else ["nobody is to fetch the KV"]
        return [*contradictions(seen.json), *not_a_prefill(seen.json), *wrong]

    def answered(self, params: dict[str, Any] | None) -> Script:
        """One token, and what the connector says."""
        document = {"id": "p", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}
        return fake.answer(200, {**document, TRANSFER: params})


class VllmDecode(SpeakingEngine):
    """What every decode of vLLM checks: that it is told where the KV comes from."""

    def complaints(self, seen: Seen) -> list[str]:
        params = seen.json.get(TRANSFER) or {}
        told = params.get("do_remote_prefill") is True and params.get("do_remote_decode") is False
        return [*contradictions(seen.json), *([] if told else ["the KV is nowhere"])]


class NixlPrefill(VllmPrefill):
    """Computes, keeps the blocks, and says which."""

    def good(self, seen: Seen) -> Script:
        blocks = [len(self.seen)]
        self.plane.hand_off((self.name, blocks[0])).computed.set()
        return self.answered(
            {
                **{"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": self.name},
                **{"remote_block_ids": blocks, "remote_request_id": seen.headers["x-request-id"]},
                **{"remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1},
            }
        )


class NixlDecode(VllmDecode):
    """Fetches the blocks it was told of under the id that prefill knew the request by."""

    def complaints(self, seen: Seen) -> list[str]:
        params = seen.json.get(TRANSFER) or {}
        name = (params.get("remote_engine_id"), *(params.get("remote_block_ids") or [None]))
        wrong = [] if name in self.plane.found else [f"no blocks {name}"]
        if params.get("remote_request_id") != seen.headers["x-request-id"]:
            wrong.append("prefill knew another id")
        return [*super().complaints(seen), *wrong]

    def good(self, seen: Seen) -> Script:
        return answering(seen, mark=False)


@dataclass
class MooncakePrefill(VllmPrefill):
    """Computes under a transfer id; its bootstrap server tells its engine id. Both answer at one port here."""

    queries: int = 0
    query_faults: list[Script] = field(default_factory=list)

    def script(self) -> Script:
        if self.seen[-1].path != "/query":
            return super().script()
        self.queries += 1
        self.seen.pop()
        if self.query_faults:
            return self.query_faults.pop(0)
        return fake.answer(200, {"0": {"engine_id": self.name, "worker_addr": {"0": {"0": "tcp://x:1"}}}})

    def good(self, seen: Seen) -> Script:
        hand_off = self.plane.hand_off(seen.json[TRANSFER]["transfer_id"])
        return (Do(_setting(hand_off.computed)), *self.answered(None))


@dataclass
class MooncakeDecode(VllmDecode):
    """Waits for the KV of its transfer id."""

    engine_ids: tuple[str, ...] = ()

    def complaints(self, seen: Seen) -> list[str]:
        params = seen.json.get(TRANSFER) or {}
        known = params.get("remote_engine_id") in self.engine_ids
        address = urlsplit(params.get("remote_bootstrap_addr") or "")
        wrong = [] if known else [f"no engine {params.get('remote_engine_id')}"]
        wrong += [] if address.scheme == "http" and address.port else ["no bootstrap server"]
        return [*super().complaints(seen), *wrong]

    def good(self, seen: Seen) -> Script:
        hand_off = self.plane.hand_off(seen.json[TRANSFER]["transfer_id"])
        return answering(seen, Hang(hand_off.computed.wait), mark=False)


class LayerwisePrefill(VllmPrefill):
    """Writes into the blocks that decode has named, under the id that both were given."""

    def complaints(self, seen: Seen) -> list[str]:
        params = seen.json.get(TRANSFER) or {}
        own = f"cmpl-{seen.headers['x-request-id']}-0"
        wrong = [] if params.get("request_id") == own else [f"decode calls it {params.get('request_id')}"]
        return [*super().complaints(seen), *wrong]

    def good(self, seen: Seen) -> Script:
        hand_off = self.plane.hand_off(seen.json[TRANSFER]["request_id"])
        return (Do(_setting(hand_off.computed)), *self.answered(None))


@dataclass
class LayerwiseDecode(VllmDecode):
    """Tells the metaserver where its blocks are, then waits for them to be filled.

    ``calls`` are what it tells instead, one per request; ``times`` how often it calls.
    """

    calls: list[bytes] = field(default_factory=list)
    times: int = 1
    heard: list[int] = field(default_factory=list)

    def complaints(self, seen: Seen) -> list[str]:
        told = isinstance((seen.json.get(TRANSFER) or {}).get("metaserver"), str)
        return [*super().complaints(seen), *([] if told else ["there is no metaserver"])]

    def good(self, seen: Seen) -> Script:
        request_id = f"cmpl-{seen.headers['x-request-id']}-0"
        body = self.calls.pop(0) if self.calls else self.where(request_id)
        url = seen.json[TRANSFER]["metaserver"]
        hand_off = self.plane.hand_off(request_id)

        async def call() -> None:
            async with httpx.AsyncClient(timeout=CALL_S, trust_env=False, verify=False) as client:
                for _ in range(self.times):
                    self.heard.append((await client.post(url, content=body)).status_code)

        return answering(seen, Do(call), Hang(hand_off.computed.wait), mark=False)

    def where(self, request_id: str) -> bytes:
        """What the connector posts."""
        said = {
            **{"request_id": request_id, "do_remote_prefill": False, "do_remote_decode": True},
            **{"remote_block_ids": [[1, 2]], "remote_engine_id": self.name, "token_ids": []},
            **{"remote_host": "127.0.0.1", "remote_port": 5700, "remote_cached_tokens": 0},
        }
        return json.dumps(said).encode()


def _setting(flag: asyncio.Event) -> Callable[[], Any]:
    async def set_it() -> None:
        flag.set()

    return set_it


ENGINES: Final[dict[str, tuple[type[SpeakingEngine], type[SpeakingEngine]]]] = {
    "bootstrap": (BootstrapPrefill, BootstrapDecode),
    "nixl": (NixlPrefill, NixlDecode),
    "mooncake": (MooncakePrefill, MooncakeDecode),
    "ascend-layerwise": (LayerwisePrefill, LayerwiseDecode),
}
"""The two engines of each protocol that needs a pair."""
