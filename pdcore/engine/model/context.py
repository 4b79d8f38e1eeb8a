"""How context parallel ranks share the tokens of a prompt chunk. Pure.

A chunk is cut into twice as many pieces as there are ranks, and rank ``r`` gets the ``r``-th piece from the front and
the ``r``-th from the back: later tokens attend to more, so that this evens the work out. The chunk's last token is
rank 0's, which samples.
"""

from __future__ import annotations

from typing import Final

TOKENS_WORTH_SHARING: Final = 16
"""Chunks with fewer tokens per rank are computed by every rank: the exchange would cost more."""


def is_shared(tokens: int, ranks: int) -> bool:
    """Whether a chunk of ``tokens`` is worth splitting; if so, every piece has a token."""
    return ranks > 1 and tokens >= ranks * TOKENS_WORTH_SHARING


def pieces(tokens: int, ranks: int, rank: int) -> tuple[range, range]:
    """The two runs of a shared chunk's tokens, counted from its first, that ``rank`` computes."""
    cuts = [tokens * i // (2 * ranks) for i in range(2 * ranks + 1)]
    back = 2 * ranks - 1 - rank
    return range(cuts[rank], cuts[rank + 1]), range(cuts[back], cuts[back + 1])
