"""Asking an engine at a fixed address how it is and what it serves; engines of any make."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import msgspec

from pdcore.registry.probe import OK, Health, ask_health, fetch
from pdcore.router.fixed.standing import Answers, Fails, Heard, Silent
from pdcore.router.models import ANY_MODEL

MODELS: Final = "/v1/models"
TAKES_NOTHING: Final = ("starting", "draining")
MOST_MODELS: Final = 64
MOST_CHARACTERS: Final = 256
_UNREADABLE: Final = (EOFError, ValueError, asyncio.LimitOverrunError)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def hear(url: str, timeout_s: float, tls: ssl.SSLContext | None = None) -> Heard:
    """How the engine at ``url`` is, within ``timeout_s``; https by ``tls``, the machine's trust if None."""
    try:
        async with asyncio.timeout(timeout_s):
            return heard(await ask_health(url, tls))
    except ConnectionRefusedError:
        return Fails(why="it refuses connections")
    except ssl.SSLError as wrong:  # before ValueError, which a certificate's error is too
        return Fails(why=f"TLS: {wrong.reason or wrong}")
    except (TimeoutError, ConnectionError, *_UNREADABLE):
        return Silent()
    except OSError as wrong:
        return Fails(why=f"it cannot be reached: {wrong}")


def heard(health: Health) -> Heard:
    """What its answer says; ours says too whether it takes requests."""
    if health.is_good and health.incarnation is not None and health.word in TAKES_NOTHING:
        return Fails(why=f"it is {health.word}")
    if health.is_good:
        return Answers(incarnation=health.incarnation)
    return Fails(why=f"its health is {health.status}")


async def models_of(
    url: str, timeout_s: float, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
) -> tuple[str, ...] | None:
    """What the engine at ``url`` serves: anything when it answers and names nothing. None when it does not answer."""
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await fetch(url, MODELS, headers, tls)
    except (OSError, *_UNREADABLE):
        return None
    return (named_in(body) if status == OK else ()) or (ANY_MODEL,)


def named_in(body: bytes) -> tuple[str, ...]:
    """The models that an answer names; none when it is no list of models."""
    try:
        found = msgspec.json.decode(body, type=_Models).data
    except (ValueError, RecursionError):
        return ()
    return tuple(one.id for one in found if _is_name(one.id))[:MOST_MODELS]


def _is_name(model: str) -> bool:
    return 0 < len(model) <= MOST_CHARACTERS and model != ANY_MODEL
