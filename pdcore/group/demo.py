"""The demo's one question, asked as any client would: streaming, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

import httpx

from pdcore.errors import PdcoreError

QUESTION: Final = "What is the capital of France?"
EXPECTED: Final = "Paris"
MAX_TOKENS: Final = 48


class NoAnswer(PdcoreError):
    """The router answered with an error, or ended its stream without finishing."""


async def ask(url: str, model: str, question: str, *, timeout_s: float) -> AsyncIterator[str]:
    """The answer's text, piece by piece as it arrives. ``timeout_s`` bounds each silence. Raises NoAnswer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=timeout_s) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
        ):
            if response.status_code != 200:
                raise NoAnswer(f"{response.status_code}: {(await response.aread()).decode(errors='replace')}")
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield _text_of(line.removeprefix("data: "))
    except httpx.HTTPError as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
    raise NoAnswer("the stream ended without [DONE]")


def _text_of(event: str) -> str:
    chunk = json.loads(event)
    if "error" in chunk:
        raise NoAnswer(chunk["error"]["message"])
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def curl(url: str, model: str) -> str:
    """The same question as a command line."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "stream": True,
    }
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'"
