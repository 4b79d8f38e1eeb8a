"""The Lua scripts, each atomic on the server: sent by their hash, and whole when the server does not know it.

Their headers say what may run when: ``no-writes`` also on a server that takes no writes, ``allow-oom`` also when its
memory is used up. Both need Redis 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from pdcore.registry.redis.connection import send

if TYPE_CHECKING:
    from redis.asyncio import Redis

TAG: Final = "{pdcore}:"
"""Begins the name of everything in the database. The braces keep it in one slot of a Redis cluster."""

ENTRIES: Final = f"{TAG}entries"
_NAMES: Final = tuple(
    TAG + name for name in ("store", "entries", "names", "leases", "ttls", "held", "holes", "view", "side")
)
"""As ``prelude.lua`` expects them."""


def _source(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


_PRELUDE: Final = _source("prelude")


@dataclass(frozen=True)
class Script:
    """``scripts/{name}.lua`` behind the prelude."""

    name: str
    flags: str = ""
    source: str = field(init=False, repr=False)
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        header = f"#!lua flags={self.flags}\n" if self.flags else "#!lua\n"
        object.__setattr__(self, "source", header + _PRELUDE + _source(self.name))
        object.__setattr__(self, "digest", sha1(self.source.encode(), usedforsecurity=False).hexdigest())

    async def run(self, redis: Redis, *arguments: bytes | str | int) -> Any:
        """What it answers. A server that does not know the script has not run it, so it is sent again, whole."""
        from redis.exceptions import NoScriptError

        keys_and_arguments = (len(_NAMES), *_NAMES, *arguments)
        try:
            return await send(redis, "EVALSHA", self.digest, *keys_and_arguments)
        except NoScriptError:
            return await send(redis, "EVAL", self.source, *keys_and_arguments)


COMMIT: Final = Script("commit")
DELETE: Final = Script("commit", "allow-oom")
"""A commit that puts nothing: it frees memory."""

GRANT: Final = Script("grant")
KEEP_ALIVE: Final = Script("keep_alive", "allow-oom")
REVOKE: Final = Script("revoke", "allow-oom")
REAP: Final = Script("reap", "allow-oom")
PAGE: Final = Script("page", "no-writes")
POSITION: Final = Script("position", "no-writes")
