"""From a body to a job for a rank, and from the rank's tokens to an answer.

A prefill leg is answered when its KV has been handed off. A decode leg's head leaves when the first output arrives,
because that is the proof that the KV came; a unified answer that is not streamed keeps its head until it is whole.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from pdcore.clock import Clock
from pdcore.engine import legs, openai
from pdcore.engine.answer import WRITE_IDLE_S, Answer
from pdcore.engine.dispatch import Reply
from pdcore.engine.fields import Body
from pdcore.engine.legs import Expectation, Leg
from pdcore.engine.messages import Limits, Sampling, Start, Stats
from pdcore.engine.metrics import Metrics
from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.openai import Head, Shape
from pdcore.engine.requests import SEED_BITS, Api, Conversation, GenerationRequest, Prompt, parse
from pdcore.engine.room_choice import recorded
from pdcore.engine.state import LeaderState
from pdcore.engine.transcript import Detokenizing, Piece, Transcript
from pdcore.engine.transfer.orders import PrefillGroup
from pdcore.errors import ApiError
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.topology.keys import RankPosition

LONG_TEXT: Final = 16 << 10
KV_RECEIVED: Final[Mapping[str, str]] = {legs.KV: "received"}


class Texts(Protocol):
    """The model's text side."""

    eos_token_ids: tuple[int, ...]

    @property
    def longest_token_bytes(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizing: ...


class Ranks(Protocol):
    """The dispatch, as far as a request needs it."""

    def open(self, start: Start, rank: RankPosition) -> AbstractContextManager[Reply]: ...

    def least_held_rank(self) -> RankPosition: ...

    @property
    def stats(self) -> Mapping[RankPosition, Stats]: ...


class PrefillPeers(Protocol):
    """Who can feed a decode leg."""

    async def prefill(self, leg: Leg, expected: str | None) -> PrefillGroup: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything a request needs, built once per process.

    ``vocab_size`` is the model's: no token id may reach it. ``serial`` makes internal request ids unique. ``choices`` is
    where a prefill engine that chooses DP ranks says so; None when it takes what the router chose. ``trouble`` says what
    is wrong with the ranks, ``drain`` stops taking requests.
    """

    state: LeaderState
    texts: Texts
    ranks: Ranks
    peers: PrefillPeers
    metrics: Metrics
    clock: Clock
    max_body_bytes: int
    request_timeout_s: float
    vocab_size: int
    serial: itertools.count[int]
    choices: RoomWriter | None = None
    trouble: Callable[[], str | None] = lambda: None
    drain: Callable[[], None] = lambda: None
    write_idle_s: float = WRITE_IDLE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request that has passed every check, ready for ``rank``; ``chosen``: by this engine, which is to say so."""

    request: GenerationRequest
    start: Start
    rank: RankPosition
    chosen: bool
    room: int | None
    shape: Shape
    transcript: Transcript


async def prepare(
    engine: Engine, api: Api, body: Body, expected: Expectation, request_id: str, deadline: float
) -> Job:
    """Check ``body`` and turn its text into tokens. ApiError before anything else has happened."""
    state = engine.state
    request = parse(api, body, vocab_size=engine.vocab_size)  # first: several prompts have lists for rooms
    leg = None if state.role == "unified" else legs.parse_leg(body)
    room = legs.parse_room(body) if leg is None else leg.room
    if request.model is not None and request.model not in state.models:
        message = f"the model {request.model[:128]!r} does not exist here; there is {', '.join(state.models)}"
        raise ApiError("model_not_found", message, param="model")
    prompt = await _tokens(engine.texts, request.prompt, state.context_length)
    budget = request.token_budget(len(prompt), state.context_length, state.kv_tokens)
    peer = None
    if leg is not None and state.role == "decode":
        peer = await engine.peers.prefill(leg, expected.prefill)
    start = Start(
        request_id=f"{request_id}~{next(engine.serial)}",
        room=0 if leg is None else leg.room,
        prompt=prompt,
        sampling=_sampling(request),
        limits=_limits(request, budget, engine.texts.eos_token_ids),
        remaining_ms=max(1, int(1000 * (deadline - engine.clock.now()))),
        prefill=peer,
        expected_peer=expected.decode if state.role == "prefill" else None,
    )
    chosen = _is_chosen_here(engine, leg)
    return Job(
        request=request,
        start=start,
        rank=engine.ranks.least_held_rank() if chosen else _rank(engine, leg),
        chosen=chosen,
        room=room,
        shape=openai.shape(api, _head(engine, request, request_id, room)),
        transcript=_transcript(engine.texts, request, prompt),
    )


async def hand_off(
    reply: Reply, answer: Answer, request_id: str, room: int, first: Callable[[], None]
) -> None:
    """A prefill leg's answer."""
    delivery = await reply.next()
    while not delivery.handed_off:
        delivery = await reply.next()
    first()
    await answer.json(openai.handed_off(request_id, room))


async def stream(
    job: Job, reply: Reply, answer: Answer, headers: Mapping[str, str], first: Callable[[], None]
) -> None:
    """Send text as it comes, whole events only; ``[DONE]`` after success and never else."""
    begun = False
    async for piece in _pieces(job, reply):
        events: list[object] = []
        if not begun:
            first()
            await answer.begin_stream(headers)
            events += job.shape.opening()
            begun = True
        if piece.text:
            events.append(job.shape.piece(piece.text))
        if piece.finish_reason is not None:
            events += job.shape.closing(piece.finish_reason, job.transcript.usage)
            await answer.finish_stream(b"".join(map(openai.event, events)) + openai.DONE)
        elif events:
            await answer.stream(b"".join(map(openai.event, events)))


async def whole(
    job: Job, reply: Reply, answer: Answer, *, early_head: bool, first: Callable[[], None]
) -> None:
    """Collect the text and send it once; with ``early_head`` the head leaves at the first output."""
    texts: list[str] = []
    async for piece in _pieces(job, reply):
        if not texts:
            first()
            if early_head:
                await answer.begin_json(KV_RECEIVED)
        texts.append(piece.text)
        if piece.finish_reason is not None:
            document = job.shape.whole("".join(texts), piece.finish_reason, job.transcript.usage)
            await (answer.finish_json(document) if early_head else answer.json(document))


async def _pieces(job: Job, reply: Reply) -> AsyncIterator[Piece]:
    """Pieces up to and including the one with a finish reason; by then the rank works on it no longer."""
    while True:
        delivery = await reply.next()
        piece = job.transcript.push(delivery.token_ids, delivery.finish_reason)
        if piece.finish_reason is not None:
            reply.leave()  # a stop string, which only the text shows; the client may be slow to read the rest
        yield piece
        if piece.finish_reason is not None:
            return


async def _tokens(texts: Texts, prompt: Prompt, context_length: int) -> tuple[int, ...]:
    """The prompt's tokens; long text is encoded off the loop, and not at all when it cannot fit the context."""
    if isinstance(prompt, tuple):
        return prompt
    field = "messages" if isinstance(prompt, Conversation) else "prompt"
    if isinstance(prompt, Conversation):
        length = sum(len(message["content"]) for message in prompt.messages)
        encode = partial(texts.encode_chat, prompt.messages)
    else:
        length = len(prompt)
        encode = partial(texts.encode, prompt)
    fewest = length // texts.longest_token_bytes
    if fewest >= context_length:
        message = f"the context is {context_length} tokens long, but {field} has at least {fewest}"
        raise ApiError("context_length_exceeded", message, param=field)
    tokens = await asyncio.to_thread(encode) if length > LONG_TEXT else encode()
    if not tokens:
        raise ApiError("invalid_request", f"{field} has no tokens", param=field)
    return tuple(tokens)


def recording(engine: Engine, job: Job) -> AbstractContextManager[None]:
    """Around a job's life: tells decode which DP rank was chosen here."""
    if engine.choices is None or not job.chosen:
        return nullcontext()
    return recorded(engine.choices, job.start.room, job.rank.dp)


def _is_chosen_here(engine: Engine, leg: Leg | None) -> bool:
    return engine.choices is not None and leg is not None and leg.dp_rank is None


def _rank(engine: Engine, leg: Leg | None) -> RankPosition:
    if leg is None or engine.state.role != "prefill":
        return engine.ranks.least_held_rank()
    return RankPosition(legs.choose_dp_rank(leg, engine.state.dp_size), 0, 0)


def _sampling(request: GenerationRequest) -> Sampling:
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=secrets.randbits(SEED_BITS) if request.seed is None else request.seed,
    )


def _limits(request: GenerationRequest, budget: int, eos: tuple[int, ...]) -> Limits:
    """``ignore_eos`` leaves the client's own stop tokens in force."""
    own = () if request.ignore_eos else eos
    ids = tuple(dict.fromkeys((*own, *request.stop_token_ids)))
    return Limits(max_tokens=budget, stop_token_ids=ids, ignore_eos=not ids)


def _head(engine: Engine, request: GenerationRequest, request_id: str, room: int | None) -> Head:
    return Head(
        id=openai.answer_id(request.api, secrets.token_hex(12)),
        created=int(engine.clock.wall()),
        model=request.model or engine.state.models[0],
        include_usage=request.include_usage,
        request_id=request_id,
        room=room,
    )


def _transcript(texts: Texts, request: GenerationRequest, prompt: tuple[int, ...]) -> Transcript:
    return Transcript(
        texts.detokenizer(prompt),
        StopStrings(request.stop),
        prompt_tokens=len(prompt),
        silent_ids=frozenset((*texts.eos_token_ids, *request.stop_token_ids)),
    )
