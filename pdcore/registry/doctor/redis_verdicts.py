"""What a Redis' condition means for a keyspace, or for journal and rooms beside one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.registry.doctor.finding import Finding, fail, ok, warn
from pdcore.registry.doctor.redis_condition import RedisCondition

OLDEST: Final = (6, 2)
NEARLY_FULL: Final = 0.8


def judge_redis(condition: RedisCondition, *, keyspace: bool) -> tuple[Finding, ...]:
    """Every finding; ``keyspace`` when it holds the fleet itself, not only journal and rooms."""
    if condition.problem is not None:
        return (fail("reachable", condition.problem, "start it, or name another one"),)
    steps = (_version, _role, _persistence, _memory)
    findings = [finding for step in steps for finding in step(condition.fields)]
    if keyspace:
        says = (
            "Redis promises no fencing over a fail-over: a write it acknowledged can be lost with the primary"
        )
        findings.append(
            warn("fencing", says, "use etcd where two starts of one instance must never both stand")
        )
    return tuple(findings)


def _version(fields: dict[str, str]) -> Iterator[Finding]:
    version = fields.get("redis_version", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) < 2 or numbers < OLDEST:
        yield warn("version", f"{version} is older than {'.'.join(map(str, OLDEST))}", "run Redis 7 or newer")
    else:
        yield ok("version", version)


def _role(fields: dict[str, str]) -> Iterator[Finding]:
    role = fields.get("role", "unknown")
    if role == "master":
        yield ok("role", f"primary, with {fields.get('connected_slaves', '0')} replicas")
    else:
        yield fail("role", f"{role}: it takes no writes", "name the primary")
    if fields.get("cluster_enabled") == "1":
        yield fail(
            "role", "it is part of a Redis cluster, where one script sees one slot", "name a single Redis"
        )


def _persistence(fields: dict[str, str]) -> Iterator[Finding]:
    if fields.get("aof_enabled") != "1":
        says = "no append-only file: after a restart everything written since the last snapshot is gone"
        yield warn("persistence", says, "`CONFIG SET appendonly yes`, appendfsync everysec")
    elif fields.get("aof_last_write_status", "ok") != "ok":
        yield fail("persistence", "the append-only file cannot be written", "free its disk")
    else:
        yield ok("persistence", "append-only file")


def _memory(fields: dict[str, str]) -> Iterator[Finding]:
    policy, limit = fields.get("maxmemory_policy", "unknown"), int(fields.get("maxmemory", "0") or 0)
    if policy != "noeviction":
        says = f"maxmemory-policy is {policy}: keys of the fleet may be evicted without a word"
        yield fail("memory", says, "`CONFIG SET maxmemory-policy noeviction`")
    else:
        yield ok("memory", "maxmemory-policy is noeviction")
    used = int(fields.get("used_memory", "0") or 0)
    if limit and used > NEARLY_FULL * limit:
        yield warn(
            "memory", f"{used / limit:.0%} of maxmemory is used", "raise maxmemory or trim the journal"
        )
