"""Where a request's prompt stands among the others of its model; asked only where a policy goes by it."""

from __future__ import annotations

from typing import Final

from pdcore.router.api import TOKENIZING, ClientRequest
from pdcore.router.policies.selection import Selection
from pdcore.router.policies.shared_prefixes import SharedPrefixes
from pdcore.router.want import Prefix

MOST_MODELS: Final = 64
FIELDS: Final = ("tools", "messages", "prompt", "text", "input_ids")
"""Where prompts are, in the order in which chat templates write them."""


class PromptMemory:
    """Mutable state: what was learned, per model; all of it is forgotten when there are too many models."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._models: dict[str, SharedPrefixes] = {}

    def see(self, model: str, request: ClientRequest, now: float) -> Prefix | None:
        """The prefix of ``request``, which is remembered; None when no policy of ``model`` reads it."""
        if request.endpoint in TOKENIZING or not self._selection.of(model).reads_prompts:
            return None
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= MOST_MODELS:
                self._models.clear()
            known = self._models[model] = SharedPrefixes()
        prompt = material(request)
        return known.see(prompt, now) if prompt else None


def material(request: ClientRequest) -> bytes:
    """The raw JSON of everything that the model reads first."""
    given = [bytes(request.fields[name]) for name in FIELDS if name in request.fields]
    return given[0] if len(given) == 1 else b"".join(given)
