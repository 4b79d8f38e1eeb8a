"""Clients that know the right answer: whoever puts somebody else's KV under a request is found out by its text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

import httpx

from tests.support.cluster import Served
from tests.support.golden import Golden

LETTERS: Final = "abcdefghij klmnop qrstuvwxyz ,.\n0123456789ABC"
PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Question:
    """``text`` is what transformers continues ``prompt`` with, ``most`` tokens at most."""

    prompt: str
    most: int
    text: str

    def body(self, **more: object) -> dict[str, object]:
        return {
            "model": "tiny",
            "prompt": self.prompt,
            "max_tokens": self.most,
            "temperature": 0,
            **more,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request ended. ``status`` is 0 when the connection did not bear an answer."""

    question: Question
    status: int
    code: str
    text: str
    sent: float
    ended: float

    @property
    def took_s(self) -> float:
        return self.ended - self.sent


class Canaries:
    """Questions of one model. Greedy and in float32, so that an answer is right or wrong, but for ties."""

    def __init__(self, model: Path) -> None:
        self._golden = Golden(model)

    def questions(self, count: int, *, seed: int, longest: int, most: int) -> list[Question]:
        """``count`` of them, of 1 to ``longest`` tokens, for 1 to ``most`` more."""
        dice = random.Random(seed)
        return [self._question(dice, dice.randint(1, longest), dice.randint(1, most)) for _ in range(count)]

    def check(self, answers: Sequence[Answer]) -> None:
        """Every text that came is the right one."""
        for answer in answers:
            if answer.status == 200 and answer.text != answer.question.text:
                prompt = self._golden.text_ids(answer.question.prompt)
                self._golden.check_text(prompt, answer.text, answer.question.most)

    def _question(self, dice: random.Random, length: int, most: int) -> Question:
        prompt = "".join(dice.choices(LETTERS, k=length))
        tokens = self._golden.generate(self._golden.text_ids(prompt), most)
        return Question(prompt, most, self._golden.decode(tokens))


def ask(server: Served, question: Question, timeout_s: float = 60.0, **fields: object) -> Answer:
    """Ask once."""
    url, sent = f"{server.url}/v1/completions", time.monotonic()
    try:
        response = httpx.post(url, json=question.body(**fields), timeout=timeout_s, trust_env=False)
    except httpx.TransportError as error:
        return Answer(question, 0, type(error).__name__, "", sent, time.monotonic())
    document, ended = response.json(), time.monotonic()
    if response.status_code != 200:
        return Answer(question, response.status_code, document["error"]["code"], "", sent, ended)
    return Answer(question, 200, "", document["choices"][0]["text"], sent, ended)


@dataclass(slots=True)
class Callers:
    """Ask ``server`` one of ``questions`` after the other, for ever; ``answers`` grows."""

    server: Served
    questions: Sequence[Question]
    fields: dict[str, object]
    stop: Event = field(default_factory=Event)
    answers: list[Answer] = field(default_factory=list)

    def run(self, number: int) -> None:
        dice = random.Random(number)
        while not self.stop.wait(PAUSE_S):
            self.answers.append(ask(self.server, dice.choice(self.questions), 60.0, **self.fields))

    def right_between(self, begin: float, end: float) -> list[Answer]:
        """Answers that came whole within a time."""
        return [one for one in tuple(self.answers) if one.status == 200 and begin <= one.ended < end]


@contextmanager
def calling(server: Served, questions: Sequence[Question], count: int, **fields: object) -> Iterator[Callers]:
    """``count`` callers; at the end each has been answered."""
    with ThreadPoolExecutor(count) as pool:
        callers = Callers(server, questions, fields)
        running: list[Future[None]] = [pool.submit(callers.run, number) for number in range(count)]
        try:
            yield callers
        finally:
            callers.stop.set()
            for one in running:
                one.result(120)
