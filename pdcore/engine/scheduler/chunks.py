"""How prompts that are being computed share the tokens of a step. Pure arithmetic.

The oldest finishes now if the budget allows, else it gets half; what is left goes to the shortest first. So a short
prompt that comes while a long one is computed is not held up by it, and the long one never stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

RECOMPUTED_SHARE: Final = 8
"""Retracted requests get what the others leave, and at least one in so many tokens, so that they come to an end."""


def share(pending: Sequence[int], budget: int) -> list[int]:
    """Tokens for each of the prompts, oldest first, that have so many left; together at most ``budget``."""
    shares = [0] * len(pending)
    if not pending or budget < 1:
        return shares
    shares[0] = pending[0] if pending[0] <= budget else -(-budget // 2)
    left = budget - shares[0]
    for index in sorted(range(1, len(pending)), key=lambda i: pending[i]):
        if not left:
            return shares
        shares[index] = min(pending[index], left)
        left -= shares[index]
    shares[0] += min(pending[0] - shares[0], left)
    return shares


def share_with_recomputed(
    fresh: Sequence[int], recomputed: Sequence[int], budget: int
) -> tuple[list[int], list[int]]:
    """The same for prompts computed the first time and, after them, requests computed once more."""
    kept = min(sum(recomputed), max(1, budget // RECOMPUTED_SHARE)) if recomputed else 0
    first = share(fresh, budget - kept)
    return first, share(recomputed, budget - sum(first))
