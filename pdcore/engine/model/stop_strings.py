"""Ending an answer at a client's stop string, without ever showing any of it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts one answer's text at the stop string that is complete first (the longest, when several end together).

    Text that could still become a stop string is held back, so how the text is cut into pushes never shows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """What may be shown now, and whether the answer has ended; nothing is shown after that."""
        if self._stopped:
            return "", True
        known = len(self._held)
        text = self._held + text
        cut = self._first_stop(text, known)
        if cut is not None:
            self._held, self._stopped = "", True
            return text[:cut], True
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The answer ended otherwise: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str, known: int) -> int | None:
        """Where the first complete stop string begins. None can be complete within the ``known`` first characters."""
        ends: list[tuple[int, int]] = []
        for stop in self._stops:
            begin = text.find(stop, max(known - len(stop) + 1, 0))
            if begin >= 0:
                ends.append((begin + len(stop), begin))
        return min(ends)[1] if ends else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
