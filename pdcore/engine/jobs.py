"""From a body to work for ranks: everything about a request is checked here, before anything else has happened."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pdcore.engine import legs, openai
from pdcore.engine.engine import Engine, Texts
from pdcore.engine.fields import Body
from pdcore.engine.generate_shapes import shape_of
from pdcore.engine.legs import Expectation, Leg
from pdcore.engine.logprobs import Scorer
from pdcore.engine.messages import Limits, Start
from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.openai import Choice, Head, Shape
from pdcore.engine.prompts import Conversation, Prompt
from pdcore.engine.requests import SEED_BITS, Api, GenerationRequest, parse
from pdcore.engine.resumption import Resumption
from pdcore.engine.state import LeaderState
from pdcore.engine.transcript import Endings, Piece, Transcript
from pdcore.engine.transfer.orders import PrefillGroup
from pdcore.errors import ApiError
from pdcore.topology.keys import RankPosition

LONG_TEXT: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One (prompt, sample) on its way: what its rank is told, and what becomes of what the rank says.

    ``replayed`` is the text of a resumed answer that the client does not have yet.
    """

    start: Start
    transcript: Transcript
    choice: Choice
    replayed: Piece | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request that has passed every check. ``rank`` None: whichever holds least when it starts.

    ``chosen``: by this engine, which is to say so.
    """

    request: GenerationRequest
    items: tuple[Item, ...]
    rank: RankPosition | None
    chosen: bool
    shape: Shape

    @property
    def rooms(self) -> list[int]:
        """Of its items; 0 where there is none."""
        return [item.start.room for item in self.items]

    @property
    def usage(self) -> openai.Usage:
        """So far; a prompt counts once, however many samples it has, by how it was computed for the first."""
        choices = [item.choice for item in self.items]
        firsts = choices[:: self.request.samples]
        return openai.Usage(
            prompt_tokens=sum(one.prompt_tokens for one in firsts),
            cached_tokens=sum(one.cached_tokens for one in firsts),
            completion_tokens=sum(one.completion_tokens for one in choices),
        )


async def prepare(
    engine: Engine, api: Api, body: Body, expected: Expectation, request_id: str, deadline: float
) -> Job:
    """Check ``body`` and turn its text into tokens. ApiError before anything else has happened."""
    state = engine.state
    request = parse(api, body, vocab_size=engine.vocab_size)
    found = None if state.role == "unified" else legs.parse_legs(body, request.items)
    rooms = legs.parse_rooms(body, request.items) if found is None else [leg.room for leg in found]
    check_model(state, request.model)
    _check_room_for(engine, request)
    prompts = await _prompts(engine, request)
    draft = _Draft(engine, request, request_id, deadline, expected)
    groups = await _prefill_groups(engine, found or (), expected)
    items = [
        draft.item(index, prompts[index // request.samples], rooms[index] if found else None, groups(index))
        for index in range(request.items)
    ]
    leg = found[0] if found else None
    chosen = engine.choices is not None and leg is not None and leg.dp_rank is None
    return Job(
        request=request,
        items=tuple(items),
        rank=None if chosen else _rank(engine, leg),
        chosen=chosen,
        shape=shape_of(request, _head(engine, request, request_id, tuple(rooms))),
    )


def check_model(state: LeaderState, model: str | None) -> None:
    """ApiError 404 for a model that is not served here."""
    if model is not None and model not in state.models:
        message = f"the model {model[:128]!r} does not exist here; there is {', '.join(state.models)}"
        raise ApiError("model_not_found", message, param="model")


def _check_room_for(engine: Engine, request: GenerationRequest) -> None:
    most = engine.ranks.max_held
    if request.items > most:
        name = "n" if request.samples > 1 else request.field_of(0).partition("[")[0]
        message = f"{name} asks for {request.items} answers; this engine holds {most} at most"
        raise ApiError("invalid_request", message, param=name)


async def _prefill_groups(
    engine: Engine, found: Sequence[Leg], expected: Expectation
) -> Callable[[int], PrefillGroup | None]:
    """Who has the KV of each item. They all have the same prefill rank, unless prefill has chosen one for each."""
    if engine.state.role != "decode":
        return lambda index: None
    groups = [await engine.peers.prefill(found[0], expected.prefill)]
    if found[0].dp_rank is None and groups[0].dp_size > 1:
        groups += [await engine.peers.prefill(leg, expected.prefill) for leg in found[1:]]
    return lambda index: groups[index % len(groups)]


@dataclass(frozen=True, slots=True)
class _Draft:
    """What the items of one request have in common."""

    engine: Engine
    request: GenerationRequest
    request_id: str
    deadline: float
    expected: Expectation

    def item(self, index: int, prompt: tuple[int, ...], room: int | None, peer: PrefillGroup | None) -> Item:
        """The item at ``index``; ApiError 400 when its prompt leaves no room in the context."""
        request, state, resume = self.request, self.engine.state, self.request.resume
        field = request.field_of(index // request.samples)
        budget = request.token_budget(len(prompt), state.context_length, state.kv_tokens, field=field)
        transcript = self._transcript(prompt)
        replayed = None if resume is None else _replay(transcript, resume, self._stop_ids, budget)
        output = () if resume is None else resume.output_ids
        seed = _seed(request, index % request.samples)
        start = Start(
            request_id=f"{self.request_id}~{next(self.engine.serial)}",
            room=room or 0,
            prompt=prompt + output,
            sampling=msgspec.structs.replace(request.sampling, seed=seed),
            limits=self._limits(max(1, budget - len(output)), len(output)),
            remaining_ms=max(1, int(1000 * (self.deadline - self.engine.clock.now()))),
            prefill=peer,
            expected_peer=self.expected.decode if state.role == "prefill" else None,
            resumed=len(output),
        )
        choice = Choice(
            index=index, prompt_tokens=len(prompt), completion_tokens=transcript.completion_tokens
        )
        return Item(start=start, transcript=transcript, choice=choice, replayed=replayed)

    @property
    def _stop_ids(self) -> tuple[int, ...]:
        """``ignore_eos`` leaves the client's own stop tokens in force."""
        own = () if self.request.ignore_eos else self.engine.texts.eos_token_ids
        return tuple(dict.fromkeys((*own, *self.request.stop_token_ids)))

    def _limits(self, budget: int, resumed: int) -> Limits:
        return Limits(
            max_tokens=budget,
            stop_token_ids=self._stop_ids,
            ignore_eos=not self._stop_ids,
            min_tokens=max(0, self.request.min_tokens - resumed),
        )

    def _transcript(self, prompt: tuple[int, ...]) -> Transcript:
        texts, request = self.engine.texts, self.request
        silent = frozenset((*texts.eos_token_ids, *request.stop_token_ids))
        return Transcript(
            texts.detokenizer(prompt),
            StopStrings(request.stop),
            Endings(silent_ids=silent, min_tokens=request.min_tokens),
            scorer=None if request.sampling.top_logprobs is None else Scorer(texts.token_bytes),
        )


def _replay(transcript: Transcript, resume: Resumption, stop_ids: Sequence[int], budget: int) -> Piece:
    """What of a resumed answer is new to the client; with a finish reason if all of it was generated already."""
    output, reason = resume.output_ids, None
    if len(output) > budget:
        message = f"resume.output_ids holds {len(output)} tokens, but at most {budget} may be generated"
        raise ApiError("invalid_request", message, param="resume.output_ids")
    if output[-1] in stop_ids:
        reason = "stop"
    elif len(output) == budget:
        reason = "length"
    return transcript.replay(output, reason, resume.emitted_chars)


def _seed(request: GenerationRequest, sample: int) -> int:
    """The first sample's is the request's own, so that more samples change nothing about it."""
    seed = request.seed if request.resume is None else request.resume.seed
    if seed is None:
        return secrets.randbits(SEED_BITS)
    if sample == 0:
        return seed
    mixed = hashlib.blake2b(b"%d/%d" % (seed, sample), digest_size=8).digest()
    return int.from_bytes(mixed, "little") >> (64 - SEED_BITS)


async def _prompts(engine: Engine, request: GenerationRequest) -> list[tuple[int, ...]]:
    if request.resume is not None and request.resume.prompt is not None:
        return [request.resume.prompt]
    texts, most = engine.texts, engine.state.context_length
    apart = sum(len(prompt) for prompt in request.prompts if isinstance(prompt, str)) > LONG_TEXT
    return [
        await tokens_of(texts, prompt, most, request.field_of(place), apart=apart)
        for place, prompt in enumerate(request.prompts)
    ]


async def tokens_of(
    texts: Texts, prompt: Prompt, context_length: int, field: str, *, apart: bool
) -> tuple[int, ...]:
    """The prompt's tokens; long text is encoded off the loop, and not at all when it cannot fit the context.

    ``apart``: off the loop however short it is, because there is much of it.
    """
    if isinstance(prompt, tuple):
        return prompt
    if isinstance(prompt, Conversation):
        length = sum(len(str(message["content"])) for message in prompt.messages)
        encode = partial(texts.encode_chat, prompt.messages, prompt.tools, prompt.arguments)
    else:
        length = len(prompt)
        encode = partial(texts.encode, prompt)
    fewest = length // texts.longest_token_bytes
    if fewest >= context_length:
        message = f"the context is {context_length} tokens long, but {field} has at least {fewest}"
        raise ApiError("context_length_exceeded", message, param=field)
    tokens = await asyncio.to_thread(encode) if apart or length > LONG_TEXT else encode()
    if not tokens:
        raise ApiError("invalid_request", f"{field} has no tokens", param=field)
    return tuple(tokens)


def _rank(engine: Engine, leg: Leg | None) -> RankPosition | None:
    if leg is None or engine.state.role != "prefill":
        return None
    return RankPosition(legs.choose_dp_rank(leg, engine.state.dp_size), 0, 0)


def _head(engine: Engine, request: GenerationRequest, request_id: str, rooms: tuple[int | None, ...]) -> Head:
    resume = request.resume
    return Head(
        id=openai.answer_id(request.api, secrets.token_hex(12)) if resume is None else resume.id,
        created=int(engine.clock.wall()) if resume is None else resume.created,
        model=request.model or engine.state.models[0],
        include_usage=request.include_usage,
        logprobs=request.sampling.top_logprobs is not None,
        resumes=resume is not None,
        request_id=request_id,
        rooms=rooms,
    )
