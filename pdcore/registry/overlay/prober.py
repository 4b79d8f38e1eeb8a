"""Asking one suspect, and what its answer counts as."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from pdcore.clock import Clock
from pdcore.registry.overlay.suspect import Outcome, Probe
from pdcore.registry.probe import OK, UNNAMED, Health, ask_health

LATE: Final = 1.5
"""A deadline that passed so much too late says that this process stood still, and nothing about the other one."""


async def ask(probe: Probe, timeout_s: float, clock: Clock, tls: ssl.SSLContext | None = None) -> Outcome:
    """Connect and ask for its health within ``timeout_s``; https by ``tls``."""
    began = clock.now()
    try:
        async with asyncio.timeout(timeout_s):
            return judge(await ask_health(probe.url, tls), probe.key[1])
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "late" if clock.now() - began > LATE * timeout_s else "silent"
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return "silent"


def judge(health: Health, expected: str) -> Outcome:
    """What ``health`` says about the incarnation ``expected``."""
    if health.incarnation is None and expected.startswith(UNNAMED):
        return "answered" if health.is_good else "failed"
    if health.incarnation == expected:
        return "answered" if health.status == OK else "failed"
    return "other" if health.incarnation is not None or health.status == OK else "silent"
