"""Whether one prefill rank answers a decode rank, as decode sees it. Pure.

While a request waits for the peer, decode asks it once a second and expects an answer to the first open question within
``silence_s``: silence fails requests, and frees nothing. While no request waits, the pair is proven at most every
``PROBE_EVERY_S`` by a record that the peer writes into its probe slot. A peer that was silent, or whose probe failed or
was not seen in time, is *down* until it answers or writes again: routers are told so, and a request that meets a silent
peer fails at once; nothing else follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

BEAT_S: Final = 1.0
PROBE_EVERY_S: Final = 5.0
PROBE_WAIT_S: Final = 5.0

Todo = Literal["beat", "probe", "unseen", "silent"]


@dataclass(slots=True)
class Liveness:
    """``asked_at`` is the first open question; ``probe_seq`` the probe under way; ``unproven`` why the last one failed."""

    silence_s: float
    waited_for: bool = False
    asked_at: float = math.inf
    beat_at: float = -math.inf
    quiet_since: float = -math.inf
    probe_seq: int | None = None
    probe_until: float = math.inf
    silent: bool = False
    unproven: str = ""

    @property
    def down(self) -> str:
        """Why the peer counts as down, for people; empty when it does not."""
        return f"it said nothing for {self.silence_s:g} s" if self.silent else self.unproven

    def waits(self, now: float, waited_for: bool) -> None:
        """Whether a request waits for the peer now. The first one starts with no question open."""
        if waited_for and not self.waited_for and not self.silent:
            self.asked_at = math.inf
        if waited_for or self.waited_for:
            self.quiet_since = now
        self.waited_for = waited_for

    def asked(self, now: float) -> None:
        """Something that must be answered was sent."""
        self.asked_at = min(self.asked_at, now)

    def answered(self) -> None:
        """The peer said something: no question is open."""
        self.asked_at = math.inf
        self.silent = False

    def proven(self) -> None:
        """Something that the peer wrote is here: its path works."""
        self.unproven = ""

    def todo(self, now: float, *, welcomed: bool) -> list[Todo]:
        """What is due now; a beat and a silence are noted as done."""
        due: list[Todo] = []
        if now >= self.probe_until:
            due.append("unseen")
        if self.waited_for:
            if now - self.asked_at >= self.silence_s:
                self.silent = True
                due.append("silent")
            if welcomed and now >= self.beat_at:
                self.beat_at = now + BEAT_S
                due.append("beat")
        elif welcomed and self.probe_seq is None and now >= self.quiet_since + PROBE_EVERY_S:
            due.append("probe")
        return due

    def probing(self, seq: int, now: float) -> None:
        """A probe of this seq was asked for."""
        self.probe_seq = seq
        self.probe_until = now + PROBE_WAIT_S

    def probe_ended(self, now: float, why: str = "") -> None:
        """The probe under way was seen, or (``why``) was not."""
        self.probe_seq, self.probe_until = None, math.inf
        self.unproven = why
        self.quiet_since = now

    def next_wake(self, *, welcomed: bool) -> float:
        """When ``todo`` may have something to do."""
        if self.waited_for:
            return min(
                self.asked_at + self.silence_s, self.beat_at if welcomed else math.inf, self.probe_until
            )
        if self.probe_seq is not None:
            return self.probe_until
        return self.quiet_since + PROBE_EVERY_S if welcomed else math.inf
