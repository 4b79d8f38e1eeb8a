"""One request inside a rank: what it asked for, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdcore.engine.messages import Start


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``computed`` leading tokens have their KV in ``blocks``; the next ``pending`` ones do not.

    Changed by the scheduler that holds it and by nobody else.
    """

    start: Start
    deadline: float
    blocks: tuple[int, ...] = ()
    computed: int = 0
    output: list[int] = field(default_factory=list)
    retractions: int = 0

    @property
    def request_id(self) -> str:
        return self.start.request_id

    @property
    def known(self) -> int:
        """Tokens whose values are known: the prompt and everything sampled."""
        return len(self.start.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        """Known tokens that still have to run through the model."""
        return self.known - self.computed

    @property
    def generating(self) -> bool:
        """Whether the only pending token is the one sampled last."""
        return bool(self.output) and self.pending == 1

    def tokens(self, start: int, count: int) -> tuple[int, ...]:
        """Known tokens at positions ``start … start + count - 1``."""
        prompt = self.start.prompt
        end = start + count
        head = prompt[start:end]
        return head + tuple(self.output[max(0, start - len(prompt)) : max(0, end - len(prompt))])

    def finish_reason(self, context_length: int) -> str | None:
        """Why the request is complete after its newest token, or None while it is not."""
        limits = self.start.limits
        if self.output[-1] in limits.stop_token_ids and not limits.ignore_eos:
            return "stop"
        if len(self.output) >= limits.max_tokens or self.known >= context_length:
            return "length"
        return None

    def still_to_generate(self, context_length: int) -> int:
        """The most tokens this request may add to what is known."""
        return max(0, min(self.start.limits.max_tokens - len(self.output), context_length - self.known))
