"""The whole examination of one store: its condition, who reaches it, a trial. Each part is told even if another fails."""

from __future__ import annotations

from pdcore.config import StoreAccess
from pdcore.registry.connect import ETCD, open_store
from pdcore.registry.doctor.access_verdicts import judge_access
from pdcore.registry.doctor.etcd_verdicts import judge_etcd
from pdcore.registry.doctor.finding import Finding
from pdcore.registry.doctor.trial import try_store
from pdcore.registry.doctor.trial_verdicts import judge_trial
from pdcore.topology.keys import Keyspace


async def examine_store(access: StoreAccess, keyspace: Keyspace) -> tuple[Finding, ...]:
    """Everything about the store that ``keyspace`` lies in. Raises ConfigError when ``access`` cannot work."""
    if access.url.startswith(ETCD):
        found = await _examine_etcd(access)
    else:
        found = await examine_redis(access, "store", keyspace=True)
    found += judge_access(access)
    if any(finding.about == "reachable" and finding.level == "fail" for finding in found):
        return found
    async with open_store(access) as store:
        return found + judge_trial(await try_store(store, keyspace), keyspace)


async def _examine_etcd(access: StoreAccess) -> tuple[Finding, ...]:
    from pdcore.registry.etcd.condition import read_condition  # grpc is loaded only where it is spoken

    return judge_etcd(await read_condition(access))


async def examine_redis(access: StoreAccess, setting: str, *, keyspace: bool) -> tuple[Finding, ...]:
    """A Redis that holds the keyspace, or journal and rooms beside it (``setting``: the flag that names it)."""
    from pdcore.registry.doctor.redis_condition import read_redis_condition
    from pdcore.registry.doctor.redis_verdicts import judge_redis

    return judge_redis(await read_redis_condition(access, setting), keyspace=keyspace)
