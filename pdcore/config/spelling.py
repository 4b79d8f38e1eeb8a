"""A hint at what somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(key: str, names: Iterable[str]) -> str:
    """The end of a sentence about the unknown ``key``: the most similar of ``names``, which have underscores."""
    found = difflib.get_close_matches(key.replace("-", "_"), sorted(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
