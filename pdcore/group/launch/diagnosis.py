"""What a member's log says about why it ended: the earliest line that has a known cause, in one sentence. Pure.

A cause is followed by many lines that only repeat that something is wrong, so the first known one counts. Lines that are
no more than warnings are told only when no error was found, and the last line when nothing is known: unless a signal
ended it, of which its log knows nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause. ``pattern`` finds it in a line."""

    code: str
    pattern: re.Pattern[str]
    means: str


def _cause(code: str, pattern: str, means: str) -> Cause:
    return Cause(code, re.compile(pattern, re.IGNORECASE), means)


CAUSES: Final = (
    _cause("unresolved_placeholder", r"\{\{[a-z_.]+\}\}", "a placeholder was never filled in"),
    _cause("kv_transfer_failed", r"mooncake.*transfer.*fail|transfer engine.*fail", "a KV transfer failed"),
    _cause("nixl_backend", r"NIXL_ERR_BACKEND", "NIXL has no backend that works here"),
    _cause(
        "pair_differs",
        r"compat(ibility)? hash|handshake.*mismatch",
        "prefill and decode were started differently",
    ),
    _cause("address_in_use", r"address already in use|EADDRINUSE", "a port is taken"),
    _cause("dp_conflict", r"data[_ -]parallel[_ -](size|rank).*(conflict|mismatch)", "DP sizes do not agree"),
    _cause(
        "transport_missing",
        r"(no module named|cannot import|could not load|cannot open shared object).*"
        r"(nixl|mooncake|ucx|memfabric|libibverbs)",
        "a library for the KV transfer is not installed",
    ),
    _cause(
        "rdma_unavailable",
        r"(no|failed to (open|find)) (rdma|ib|infiniband) device|ibv_[a-z_]+ fail",
        "RDMA is not available",
    ),
    _cause(
        "no_such_interface",
        r"no such (device|interface)|interface .* not found",
        "there is no such network interface",
    ),
    _cause(
        "not_in_image",
        r"command not found|cannot be executed|FileNotFoundError|no such file or directory: '?(vllm|python3?|sglang)",
        "the command is not installed",
    ),
    _cause(
        "no_kv_memory",
        r"no available memory for the cache blocks|not enough kv cache",
        "no memory is left for the KV cache",
    ),
    _cause("out_of_memory", r"out of memory|OutOfMemoryError|NPU out of memory", "the memory is used up"),
    _cause(
        "two_connectors",
        r"kv[_-]transfer[_-]config.*(twice|duplicate|multiple)",
        "the connector is configured twice",
    ),
    _cause("misconfigured", r"--[a-z-]+ / PDCORE_[A-Z_]+: |No such option", "it was given what cannot work"),
    _cause("id_in_use", r"instance \S+ is in use", "another process has its id"),
)
_WARNING: Final = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


class Diagnosis:
    """Reads the lines of one run. Mutable: what it has found so far."""

    def __init__(self) -> None:
        self._found: str | None = None
        self._warned: str | None = None
        self._last = ""

    def line(self, text: str) -> None:
        """One more line."""
        if not text.strip():
            return
        self._last = text.strip()
        if self._found is not None:
            return
        cause = next((one for one in CAUSES if one.pattern.search(text)), None)
        if cause is None:
            return
        said = f"{cause.means} [{cause.code}]: {self._last}"
        if _WARNING.search(text):
            self._warned = self._warned or said
        else:
            self._found = said

    def sentence(self, status: int) -> str:
        """What an end with ``status`` (negative: by that signal) was about, bounded; empty when nothing says so."""
        last = self._last if status >= 0 else ""
        return (self._found or self._warned or last)[:LONGEST]
