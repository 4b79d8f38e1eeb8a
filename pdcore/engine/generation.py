"""From the words of ranks to an answer.

A prefill leg is answered when the KV of all its items has been handed off. A decode leg's head leaves when its first
output arrives, because that is the proof that the KV came; the head says so if that holds for every item. What is not
streamed waits for all of them, and a unified answer that is not streamed keeps its head until it is whole. One failed
item fails the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from pdcore.engine import legs, openai
from pdcore.engine.answer import Answer
from pdcore.engine.engine import Engine
from pdcore.engine.jobs import Item, Job
from pdcore.engine.replies import Replies
from pdcore.engine.resumption import output_comment, prompt_comment
from pdcore.engine.room_choice import recorded
from pdcore.engine.transcript import Piece

KV_RECEIVED: Final[Mapping[str, str]] = {legs.KV: "received"}

First = Callable[[], None]
Headers = Callable[[], Mapping[str, str]]
"""Asked for when the head leaves."""
News = list[tuple[Item, Piece]]


@contextmanager
def opened(engine: Engine, job: Job) -> Iterator[Replies]:
    """Give every item to a rank; leaving takes back those that have not ended. Nothing is given for a complete answer."""
    news = asyncio.Event()
    with ExitStack() as stack:
        replies = []
        for item in job.items:
            if is_complete(item):
                continue
            rank = engine.ranks.least_held_rank() if job.rank is None else job.rank
            replies.append(stack.enter_context(engine.ranks.open(item.start, rank, news)))
            if engine.choices is not None and job.chosen:
                stack.enter_context(recorded(engine.choices, item.start.room, rank.dp))
        yield Replies(replies, news)


def is_complete(item: Item) -> bool:
    """Whether a resumed answer had been generated to its end already."""
    return item.replayed is not None and item.replayed.finish_reason is not None


async def hand_off(
    job: Job, replies: Replies, answer: Answer, headers: Headers, request_id: str, first: First
) -> None:
    """A prefill leg's answer."""
    waiting = {place for place, item in enumerate(job.items) if not is_complete(item)}
    while waiting:
        waiting -= {place for place, delivery in await replies.next() if delivery.handed_off}
    first()
    await answer.json(openai.handed_off(request_id, job.rooms), headers=headers())


async def stream(
    job: Job,
    replies: Replies,
    answer: Answer,
    headers: Callable[[bool], Mapping[str, str]],
    first: First,
    *,
    with_ids: bool,
) -> None:
    """Send text as it comes, whole events only; ``[DONE]`` after success and never else.

    ``headers`` are asked for when the first output is here; they depend on whether every item has some. ``with_ids``:
    comments say which tokens the events stand for.
    """
    begun = False
    async for news in _news(job, replies):
        events: list[bytes] = []
        if not begun:
            first()
            await answer.begin_stream(headers(len({item.choice.index for item, _ in news}) == len(job.items)))
            events += _opening(job, with_ids=with_ids)
            begun = True
        for item, piece in news:
            events += _events(job, item, piece, with_ids=with_ids)
        if all(item.choice.finish_reason is not None for item in job.items):
            events += map(openai.event, job.shape.closing(job.usage))
            await answer.finish_stream(b"".join(events) + openai.DONE)
        elif events:
            await answer.stream(b"".join(events))


async def whole(
    job: Job, replies: Replies, answer: Answer, headers: Headers, first: First, *, early_head: bool
) -> None:
    """Collect the text and send it once; with ``early_head`` the head leaves when every item has some output."""
    silent = {item.choice.index for item in job.items}
    async for news in _news(job, replies):
        if len(silent) == len(job.items):
            first()
        if silent:
            silent -= {item.choice.index for item, _ in news}
            if not silent and early_head:
                await answer.begin_json({**headers(), **KV_RECEIVED})
    document = job.shape.whole([item.choice for item in job.items], job.usage)
    await (answer.finish_json(document) if early_head else answer.json(document, headers=headers()))


async def _news(job: Job, replies: Replies) -> AsyncIterator[News]:
    """What is new, until every item has ended; by then no rank works on an item that has."""
    replayed = [(item, item.replayed) for item in job.items if item.replayed is not None]
    for item, piece in replayed:
        item.choice.add(piece)
    running = [item for item in job.items if not is_complete(item)]
    open_items = len(running)
    if not running:
        yield replayed
        return
    while open_items:
        news: News = []
        for place, delivery in await replies.next():
            item = running[place]
            piece = item.transcript.push(delivery.token_ids, delivery.finish_reason, delivery.logprobs)
            item.choice.add(piece)
            item.choice.cached_tokens += delivery.cached_tokens
            if piece.finish_reason is not None:
                open_items -= 1
                replies.leave(
                    place
                )  # a stop string, which only the text shows; the client may be slow to read
            news.append((item, piece))
        if news:
            yield [*replayed, *news]
            replayed = []


def _opening(job: Job, *, with_ids: bool) -> list[bytes]:
    events = [openai.event(document) for document in job.shape.opening([item.choice for item in job.items])]
    if with_ids:
        start = job.items[0].start
        prompt = start.prompt[: len(start.prompt) - start.resumed]
        events[:1] = [prompt_comment(prompt) + (events[0] if events else b"\n")]
    return events


def _events(job: Job, item: Item, piece: Piece, *, with_ids: bool) -> list[bytes]:
    events = [openai.event(document) for document in job.shape.piece(item.choice, piece)]
    if with_ids and piece.token_ids:
        events[:1] = [output_comment(piece.token_ids) + (events[0] if events else b"\n")]
    return events
