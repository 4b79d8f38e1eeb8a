"""A hint at what somebody probably meant, and messages in the spelling that they used."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from pdcore.config.setting import Setting

Spellings = Mapping[str, str]
"""The flag that somebody typed, by the name of the setting that it gives a value to."""


def closest(key: str, names: Iterable[str]) -> str:
    """The end of a sentence about the unknown ``key``: the most similar of ``names``, which have underscores."""
    found = difflib.get_close_matches(key.replace("-", "_"), sorted(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def typed(
    arguments: Sequence[str], settings: Sequence[Setting], others: Mapping[str, str] | None = None
) -> Spellings:
    """How the flags on a command line are spelled there; ``others`` are flags that stand for settings, with dashes.

    What was typed in two ways has none that could be told instead of its own.
    """
    known = {flag: setting.name for setting in settings for flag in setting.flags}
    known |= {"--config": "config", **(others or {})}
    found: dict[str, set[str]] = {}
    for word in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        if dashed(word) in known:
            found.setdefault(known[dashed(word)], set()).add(word)
    return {name: flag for name, (flag, *more) in found.items() if not more}


def in_their_spelling(problem: str, spelled: Spellings) -> str:
    """``problem``, which names settings by their own flags, by the flags that were typed for them."""
    for name, flag in spelled.items():
        own = f"--{dashed(name)}"
        if flag != own:
            problem = re.sub(rf"{own}(?: / PDCORE_{name.upper()})?(?![\w-])", flag, problem)
    return problem


def dashed(flag: str) -> str:
    """Either spelling of a flag, with dashes."""
    return flag.replace("_", "-")
