"""What a trial of a store, and the keys it holds, mean. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.registry.doctor.finding import Finding, fail, ok, warn
from pdcore.registry.doctor.trial import Trial
from pdcore.topology.keys import Keyspace
from pdcore.topology.orders import binds_every_start
from pdcore.topology.topology import Topology, build

SLOW_PUT_S: Final = 0.1
SLOW_EVENT_S: Final = 0.5
UNCOMPACTED_REVISIONS: Final = 100_000
_SHOWN: Final = 5
_UNUSABLE: Final = "nobody can register until this is mended"


def judge_trial(trial: Trial, keyspace: Keyspace) -> tuple[Finding, ...]:
    """Findings about using the store, then about what is in it."""
    findings = [*_judge_use(trial, keyspace), *_judge_history(trial)]
    if trial.view is not None:
        listed = {key.removeprefix(keyspace.view): stored for key, stored in trial.view.entries.items()}
        findings += _judge_view(build(listed, trial.view.revision))
    return tuple(findings)


def _judge_use(trial: Trial, keyspace: Keyspace) -> Iterator[Finding]:
    if trial.problem is not None:
        todo = f"grant the account reading and writing below {keyspace.root}" if trial.refused else _UNUSABLE
        yield fail("use", trial.problem, todo)
    if trial.put_s is not None:
        yield _judge_time("put", trial.put_s, SLOW_PUT_S, "give etcd a disk of its own, near its clients")
    if trial.event_s is not None:
        yield _judge_time("event", trial.event_s, SLOW_EVENT_S, "look for a member without processor time")


def _judge_time(about: str, seconds: float, slow_s: float, todo: str) -> Finding:
    says = f"{seconds * 1000:.1f} ms"
    return (
        warn(about, f"{says}, more than {slow_s * 1000:.0f}", todo) if seconds > slow_s else ok(about, says)
    )


def _judge_history(trial: Trial) -> Iterator[Finding]:
    if trial.history_whole is None or trial.view is None:
        return
    revision = trial.view.revision
    if not trial.history_whole:
        yield ok("compaction", f"history before revision {revision} is compacted from time to time")
    elif revision > UNCOMPACTED_REVISIONS:
        says = f"none of {revision} revisions was ever compacted: the database only grows"
        todo = "start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h"
        yield warn("compaction", says, todo)
    else:
        yield ok("compaction", f"not needed yet at revision {revision}; have it on before it is")


def _judge_view(topology: Topology) -> Iterator[Finding]:
    if topology.store_id is None:
        yield ok("store id", "none yet: the first router or engine writes it")
    else:
        yield ok("store id", topology.store_id)
    for _, rejected in sorted(topology.rejected.items())[:_SHOWN]:
        yield warn("keys", str(rejected), "remove it, or upgrade what reads it")
    gone = (name for name in topology.orders if name not in topology.instances)
    idle = sorted(name for name in gone if not binds_every_start(topology.orders[name]))
    for name in idle[:_SHOWN]:
        yield warn("orders", f"the order for {name} binds nobody", f"`pdcore instance undrain {name}`")
