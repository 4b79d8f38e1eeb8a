"""Learns from the prompts that pass which beginnings many of them share, and where each one leaves the rest.

A prompt is bytes: the raw JSON of its messages, text or token ids. Nothing is known of its structure; what two prompts
have in common is found by comparing them, and a beginning counts as shared once it was followed by ``BRANCHES`` different
continuations. So a system prompt, a document at the head of the user's message, and tenants behind one common preamble
are all the same thing. A later turn of a conversation is none of it: it only goes on where the earlier one ended.

The memory is a radix tree with coarse edges. A node is found by the hash of its parent and of its first ``KEY`` bytes,
and keeps its stem, what all prompts through it have said so far. Where prompts part, the stem is cut on a multiple of
``GRAIN`` bytes: routers that have seen different prompts still cut at the same place.

Mutable state: the nodes in order of their last use with the sum of their stems' lengths, the sum of those that are
shared, and the decaying count of prompts. Pure otherwise: instants are passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from pdcore.router.want import Part, Prefix

KEY: Final = 128
GRAIN: Final = 64
SPAN: Final = 64 << 10
CLOSERS: Final = b'"}] \r\n\t'  # with which JSON ends where a longer prompt goes on
MOST_CLOSERS: Final = 32
BRANCHES: Final = 3
LEVELS: Final = 4
HALF_LIFE_S: Final = 60.0
IDLE_S: Final = 300.0


class Warmth:
    """A count that halves every ``HALF_LIFE_S``."""

    __slots__ = ("at", "value")

    def __init__(self, value: float, at: float) -> None:
        self.value = value
        self.at = at

    def add(self, now: float) -> float:
        """One more ``now``; the sum."""
        self.value = self.value * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S) + 1
        self.at = now
        return self.value


class Node:
    """A stretch of prompts from one parting to the next. ``branches`` counts the continuations seen after its stem."""

    __slots__ = ("branches", "stem", "warmth")

    def __init__(self, stem: bytes, warmth: Warmth) -> None:
        self.stem = stem
        self.warmth = warmth
        self.branches = 0

    @property
    def shared(self) -> bool:
        return self.branches >= BRANCHES


class SharedPrefixes:
    """The beginnings that the prompts of one model share; bounded in bytes, in nodes and in time."""

    def __init__(self, *, most_bytes: int = 16 << 20, most_nodes: int = 16384) -> None:
        self._most_bytes = most_bytes
        self._most_nodes = most_nodes
        self._nodes: OrderedDict[int, Node] = OrderedDict()
        self._bytes = 0
        self._shared_bytes = 0
        self._prompts = Warmth(0.0, 0.0)

    def __repr__(self) -> str:
        return f"<SharedPrefixes: {len(self._nodes)} nodes, {self._bytes} bytes, {self._shared_bytes} shared>"

    @property
    def held_bytes(self) -> int:
        """How much of prompts is remembered."""
        return self._bytes

    def see(self, prompt: bytes, now: float) -> Prefix:
        """Where ``prompt`` stands among those seen before; it is one of them from here on."""
        self._drop_idle(now)
        everything = self._prompts.add(now)
        parts: list[Part] = []
        last_shared = -1
        start, above, name = 0, None, 0
        while start < len(prompt) and len(parts) < LEVELS:
            name = _name(name, prompt[start : start + KEY])
            node = self._nodes.get(name)
            if node is None:
                node = self._add(name, Node(prompt[start : start + SPAN], Warmth(1.0, now)), above)
            else:
                self._nodes.move_to_end(name)
                node.warmth.add(now)
                self._meet(name, node, prompt, start)
            if node.shared:
                last_shared = len(parts)
            parts.append(Part(name, node.warmth.value / everything))
            if not node.branches:
                break
            start, above = start + len(node.stem), node
        self._drop_surplus()
        return Prefix(path=tuple(parts[: last_shared + 2]), shared_bytes=self._shared_bytes)

    def _meet(self, name: int, node: Node, prompt: bytes, start: int) -> None:
        """Cut ``node`` where ``prompt`` parts from it; where one of the two only goes on, the longer one is kept."""
        common = common_length(node.stem, prompt, start)
        end = start + common
        if _is_end(node.stem, common):
            if not node.branches and common < SPAN and end < len(prompt):
                self._change(node, stem=prompt[start : start + SPAN])
            return
        if _is_end(prompt, end):
            return
        cut = common - common % GRAIN
        rest, warmth = node.stem[cut:], Warmth(node.warmth.value, node.warmth.at)
        self._change(node, stem=node.stem[:cut])
        self._add(_name(name, rest[:KEY]), Node(rest, warmth), node)

    def _add(self, name: int, node: Node, above: Node | None) -> Node:
        known = self._nodes.get(name)
        if known is not None:
            return known
        self._nodes[name] = node
        self._bytes += len(node.stem)
        if above is not None:
            self._change(above, branches=above.branches + 1)
        return node

    def _change(self, node: Node, *, stem: bytes | None = None, branches: int | None = None) -> None:
        """Every change of a node, so that the sums hold."""
        self._forget(node)
        node.stem = node.stem if stem is None else stem
        node.branches = node.branches if branches is None else branches
        self._bytes += len(node.stem)
        self._shared_bytes += len(node.stem) if node.shared else 0

    def _forget(self, node: Node) -> None:
        self._bytes -= len(node.stem)
        self._shared_bytes -= len(node.stem) if node.shared else 0

    def _drop_idle(self, now: float) -> None:
        while self._nodes and now - next(iter(self._nodes.values())).warmth.at > IDLE_S:
            self._forget(self._nodes.popitem(last=False)[1])

    def _drop_surplus(self) -> None:
        while self._bytes > self._most_bytes or len(self._nodes) > self._most_nodes:
            self._forget(self._nodes.popitem(last=False)[1])


def common_length(stem: bytes, prompt: bytes, start: int) -> int:
    """How many bytes of ``stem`` ``prompt`` has from ``start`` on; whole stretches are compared at once."""
    if prompt.startswith(stem, start):
        return len(stem)
    low, high = 0, min(len(stem), len(prompt) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if prompt.startswith(stem[low:middle], start + low):
            low = middle
        else:
            high = middle - 1
    return low


def _is_end(prompt: bytes, at: int) -> bool:
    """Whether nothing is left from ``at`` on but what closes a prompt."""
    return len(prompt) - at <= MOST_CLOSERS and not prompt[at:].strip(CLOSERS)


def _name(above: int, key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8, salt=above.to_bytes(8, "big")).digest(), "big")
