"""One connection pool to one Redis, and what its errors mean in terms of the store contract: one table.

redis-py comes with the extra ``redis`` and is imported only where a Redis is opened. Its own retries are off: it
cannot know which command may happen twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, ConfigError, StoreError, StoreRefused, StoreUnavailable
from pdcore.registry.tls_files import read_tls_files

if TYPE_CHECKING:
    from redis.asyncio import Redis

PLAIN: Final = "redis://"
TLS: Final = "rediss://"
PORT: Final = 6379
MAX_CONNECTIONS: Final = 32
_LOCATION: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(/(?P<database>[0-9]{0,4}))?"
)


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """Where a Redis is: ``host`` without brackets; ``tls`` as the scheme says."""

    host: str
    port: int
    database: int
    tls: bool

    @property
    def address(self) -> str:
        """``host:port``, as errors name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_redis_url(url: str, setting: str = "redis") -> RedisLocation:
    """What ``redis://HOST[:PORT][/DB]`` or ``rediss://`` (TLS) says; ``setting`` names the flag that said it.

    Raises :class:`ConfigError` when it cannot work; credentials in it are never shown.
    """
    where = f"--{setting} / PDCORE_{setting.upper()}"
    scheme, separator, rest = url.partition("://")
    if scheme + separator not in (PLAIN, TLS):
        given = (
            f", not with {scheme[:20]!r}" if separator else ""
        )  # without one it may be anything, a login too
        raise ConfigError(f"{where}: must start with {PLAIN} or {TLS}{given}")
    if "@" in rest:
        raise ConfigError(
            f"{where}: a user and password do not belong into the URL: "
            f"use --{setting}-user and PDCORE_{setting.upper()}_PASSWORD"
        )
    found = _LOCATION.fullmatch(rest)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ConfigError(f"{where}: {rest!r} is not HOST[:PORT][/DB] with a port from 1 to 65535")
    return RedisLocation(
        found["host"].strip("[]"), port, int(found["database"] or 0), scheme + separator == TLS
    )


def open_redis(access: StoreAccess, setting: str = "redis") -> Redis:
    """A client of the Redis at ``access.url``, not yet connected; ``async with`` it, or ``aclose`` it.

    It speaks RESP3 and answers in bytes. Connecting ends within ``access.timeout_s``, and so does waiting for one of
    its ``MAX_CONNECTIONS``; a call is bounded by :func:`redis_call` around it. ``setting`` is the flag that errors name.
    """
    location = parse_redis_url(access.url, setting)
    try:
        from redis.asyncio import BlockingConnectionPool, Connection, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError as error:
        raise ConfigError(f"{access.url} needs the Redis client: pip install 'pdcore[redis]'") from error
    if access.user is not None and access.password is None:
        variable = f"PDCORE_{setting.upper()}"
        raise ConfigError(f"--{setting}-user / {variable}_USER: {access.user} needs {variable}_PASSWORD")
    files = read_tls_files(access, setting)
    encrypted = location.tls or files is not None
    if encrypted:
        from pdcore.registry.redis.tls import ExplainingConnection
    pool = BlockingConnectionPool(
        connection_class=ExplainingConnection if encrypted else Connection,
        max_connections=MAX_CONNECTIONS,
        timeout=access.timeout_s,
        host=location.host,
        port=location.port,
        db=location.database,
        username=access.user,
        password=access.password,
        socket_timeout=None,  # with one it sends by asyncio.wait_for, which in Python 3.11 can lose a cancellation
        socket_connect_timeout=access.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=3,
        legacy_responses=False,
        client_name="pdcore",
        driver_info=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **(_tls_options(access) if encrypted else {}),
    )
    return Redis.from_pool(pool)


def _tls_options(access: StoreAccess) -> dict[str, Any]:
    return {"ssl_ca_certs": access.ca, "ssl_certfile": access.cert, "ssl_keyfile": access.key}


@asynccontextmanager
async def closing(redis: Redis) -> AsyncIterator[Redis]:
    """Close ``redis`` at the end of the block; a server that does not answer that is left alone."""
    from redis.exceptions import RedisError

    try:
        yield redis
    finally:
        with suppress(RedisError):
            await redis.aclose()


@asynccontextmanager
async def redis_call(address: str, timeout_s: float) -> AsyncIterator[None]:
    """Bound everything in the block by ``timeout_s`` and raise its failures as :class:`StoreError`."""
    from redis.exceptions import RedisError

    try:
        async with asyncio.timeout(timeout_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise translate(error, address) from error


async def send(redis: Redis, *command: bytes | str | int) -> Any:
    """The answer to one command; redis-py's own methods are typed for its synchronous client too."""
    execute: Callable[..., Awaitable[Any]] = redis.execute_command
    return await execute(*command)


_NO_LOGIN: Final = "HELLO must be called with the client already authenticated"

# The first row whose class fits and whose text occurs in the error decides. Classes by name: the table is read
# before anybody knows whether redis-py is there.
_TABLE: Final[tuple[tuple[str, str, type[StoreError]], ...]] = (
    ("AuthenticationError", "", AccessRefused),
    ("AuthorizationError", "", AccessRefused),
    ("NoPermissionError", "", AccessRefused),
    ("ResponseError", "ACL failure in script", AccessRefused),
    ("ConnectionError", "CERTIFICATE", AccessRefused),
    ("ConnectionError", "UNKNOWN_CA", AccessRefused),
    ("ConnectionError", "", StoreUnavailable),
    ("TimeoutError", "", StoreUnavailable),
    ("OSError", "", StoreUnavailable),
    ("ReadOnlyError", "", StoreUnavailable),
    ("ClusterDownError", "", StoreUnavailable),
    ("TryAgainError", "", StoreUnavailable),
    ("ResponseError", "BUSY ", StoreUnavailable),
    ("ResponseError", "NOREPLICAS", StoreUnavailable),
    ("ResponseError", "UNBLOCKED", StoreUnavailable),
    ("ResponseError", "Script killed by user", StoreUnavailable),
)


def translate(error: Exception, address: str) -> StoreError:
    """The error to raise for a call to the Redis at ``address`` that failed; what no row names is a refusal."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(error).split()).rstrip(".")
    said = "it asks for a password" if _NO_LOGIN in text else text or "no answer in time"
    message = f"redis at {address}: {said}"
    for kind, fragment, make in _TABLE:
        if kind in kinds and fragment in text:
            return make(message)
    return StoreRefused(message)
