"""What a Redis says about itself. Read only; what may not be asked is left out."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.config import StoreAccess
from pdcore.errors import StoreError
from pdcore.registry.redis.connection import open_redis, parse_redis_url, redis_call, send


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCondition:
    """Fields of ``INFO`` by name. ``problem``: why there are none."""

    fields: dict[str, str]
    problem: str | None = None


async def read_redis_condition(access: StoreAccess, setting: str) -> RedisCondition:
    """Ask once. Raises :class:`~pdcore.errors.ConfigError` when ``access`` cannot work."""
    address = parse_redis_url(access.url, setting).address
    async with open_redis(access, setting) as redis:
        try:
            async with redis_call(address, access.timeout_s):
                answer = await send(redis, "INFO", "everything")  # parsed by the client
        except StoreError as error:
            return RedisCondition(fields={}, problem=str(error))
    return RedisCondition(fields={str(name): str(value) for name, value in answer.items()})
