"""One request inside a rank: what it asked for, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdcore.engine.kv.blocks import BlockLists, Counts
from pdcore.engine.messages import Start
from pdcore.engine.scheduler.places import MOVES, Place

Peer = tuple[str, str]
"""One start of a prefill instance: its id and incarnation."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``computed`` leading tokens have their KV in ``blocks``, which have room for ``capacity``; the next ``pending``
    of its ``known`` tokens (the prompt and everything sampled) do not. It ends when it knows ``most_known`` of them.

    ``needed`` are the blocks it waits for while it is in the line, ``peer`` the prefill instance that has its KV, and
    ``handoff`` names the transfer under way. ``keys`` name its first full blocks, of which ``remembered`` can be found
    by others; ``cached`` prompt tokens it found so itself. The KV of ``ahead`` tokens was to be sent ahead of the rest.

    Changed by the scheduler that holds it and by nobody else. ``blocks`` is replaced only when the request grows.
    """

    start: Start
    deadline: float
    context_length: int
    place: Place
    peer: Peer | None = None
    handoff: int | None = None
    needed: Counts = ()
    blocks: BlockLists = ()
    capacity: int = 0
    computed: int = 0
    request_id: str = field(init=False)
    known: int = field(init=False)
    most_known: int = field(init=False)
    output: list[int] = field(default_factory=list)
    retractions: int = 0
    keys: list[bytes] = field(default_factory=list)
    remembered: int = 0
    cached: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        self.request_id = self.start.request_id
        self.known = len(self.start.prompt)
        self.most_known = min(self.known + self.start.limits.max_tokens, self.context_length)

    @property
    def pending(self) -> int:
        """Known tokens that still have to run through the model."""
        return self.known - self.computed

    @property
    def generating(self) -> bool:
        """Whether the only pending token is the one sampled last."""
        return self.known - self.computed == 1 and bool(self.output)

    def move(self, place: Place) -> None:
        """Go to ``place``; ValueError, and nothing changed, when the table has no such move."""
        if place not in MOVES[self.place]:
            raise ValueError(f"request {self.request_id} cannot go from {self.place.name} to {place.name}")
        self.place = place

    def tokens(self, start: int, count: int) -> tuple[int, ...]:
        """Known tokens at positions ``start … start + count - 1``."""
        prompt = self.start.prompt
        end = start + count
        if end <= len(prompt):
            return prompt[start:end]
        return prompt[start:] + tuple(self.output[max(0, start - len(prompt)) : end - len(prompt)])

    def append(self, token: int) -> str | None:
        """A token was sampled; why the request is complete with it, or None while it is not."""
        self.output.append(token)
        self.known += 1
        limits = self.start.limits
        if token in limits.stop_token_ids and not limits.ignore_eos:
            return "stop"
        return "length" if self.known >= self.most_known else None

    def give_back(self) -> None:
        """Forget what is computed; the tokens stay."""
        self.blocks, self.capacity, self.computed, self.remembered = (), 0, 0, 0
