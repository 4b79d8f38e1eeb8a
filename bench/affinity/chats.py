"""What fake engines read of a chat: the KV blocks of its messages, and their tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from bench.affinity.workloads import BLOCK_TOKENS, CHARACTERS_PER_TOKEN

_BLOCK_BYTES: Final = BLOCK_TOKENS * CHARACTERS_PER_TOKEN


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str


class Chat(msgspec.Struct):
    """What an engine reads of a request.

    ``seed`` says when it was sent, in microseconds of the workload's clock: every router passes that on.
    """

    messages: list[Message]
    seed: int = 0
    bootstrap_room: int | None = None


DECODER: Final = msgspec.json.Decoder(Chat)


def blocks(messages: Sequence[Message]) -> list[int]:
    """The chain of full KV blocks of ``messages``, as their text tells it."""
    text = _text(messages)
    chain, last = [], b""
    for start in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        last = blake2b(text[start : start + _BLOCK_BYTES], digest_size=8, key=last).digest()
        chain.append(int.from_bytes(last, "big"))
    return chain


def tokenized(messages: Sequence[Message]) -> bytes:
    """The answer to who asks for the tokens of ``messages``: four characters each, as vLLM's ``/tokenize`` says it.

    vllm-router asks every worker for every request, twice, and matches the tokens it is told.
    """
    text = _text(messages)
    text += b" " * (-len(text) % CHARACTERS_PER_TOKEN)
    tokens = struct.unpack(f">{len(text) // 2}H", text)[::2]
    return msgspec.json.encode({"count": len(tokens), "max_model_len": 131_072, "tokens": tokens})


def _text(messages: Sequence[Message]) -> bytes:
    return "".join(f"{one.role}\n{one.content}" for one in messages).encode()
