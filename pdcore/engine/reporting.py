"""What a rank lets others know while it turns: that it lives, how far it is, what it does."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.messages import PathFailures, PeerDown, Stats
from pdcore.engine.transfer.gauges import SideGauges

BEAT_INTERVAL_S: Final = 0.2
STATS_INTERVAL_S: Final = 0.1
STATS_AT_LEAST_S: Final = 1.0
STATUS_INTERVAL_S: Final = 1.0

_log = telemetry.logger(__name__)


@dataclass(slots=True)
class Counters:
    """Totals since the process started."""

    steps: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    handoffs_ok: int = 0
    handoffs_failed: int = 0
    inference_s: float = 0.0


class Beats:
    """Proves to the registrar that a loop turns. A full pipe means nobody reads, which is not our trouble."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._last = float("-inf")

    def beat(self, now: float) -> None:
        """One sign of life, unless there was one a moment ago."""
        if self._descriptor is None or now - self._last < BEAT_INTERVAL_S:
            return
        self._last = now
        try:
            os.write(self._descriptor, b"\0")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            _log.warning("registrar gone", consequence="beats stop until the leader restarts it")
            self._descriptor = None


class Figures:
    """Tells the leader the rank's figures: as they change, when it falls idle, and once a second in any case."""

    def __init__(self, leader: LeaderLink) -> None:
        self._leader = leader
        self._last: Stats | None = None
        self._told_at = float("-inf")

    def is_due(self, now: float, *, idle: bool) -> bool:
        """Whether it is time to look at the figures."""
        return idle or now - self._told_at >= STATS_INTERVAL_S

    def tell(self, stats: Stats, now: float) -> None:
        """Send ``stats`` if they are news, or to be heard."""
        if stats != self._last or now - self._told_at >= STATS_AT_LEAST_S:
            self._leader.send(stats)
            self._last, self._told_at = stats, now


def side_stats(steps: int, side: SideGauges) -> Stats:
    """Figures of a rank that has done so many steps, as far as its side of hand-offs knows them."""
    failures = side.failures
    return Stats(
        steps=steps,
        slots_total=side.slots_total,
        slots_used=side.slots_used,
        rooms=side.rooms,
        request_failures={} if failures is None else dict(failures.request),
        transfer_failures=()
        if failures is None
        else tuple(
            PathFailures(engine=path.engine, peer=path.peer, reason=path.reason, count=count)
            for path, count in failures.transfer.items()
        ),
        peers_down=tuple(
            PeerDown(instance_id=peer.instance_id, incarnation=peer.incarnation, rank=peer.rank, why=peer.why)
            for peer in side.peers_down
        ),
    )


class StatusLine:
    """Once a second, while steps are done, a line for people."""

    def __init__(self, clock: Clock) -> None:
        self._at = clock.now()
        self._before = Counters()

    def is_due(self, now: float, count: Counters) -> bool:
        """Whether a line is to be written."""
        return now - self._at >= STATUS_INTERVAL_S and count.steps > self._before.steps

    def log(self, now: float, count: Counters, stats: Stats) -> None:
        """Write it."""
        steps = count.steps - self._before.steps
        _log.info(
            "status",
            step=count.steps,
            batch=stats.running,
            inference_ms=round((count.inference_s - self._before.inference_s) / steps * 1000, 2),
            **{"tok/s": round((count.output_tokens - self._before.output_tokens) / (now - self._at), 1)},
            kv=f"{stats.kv_blocks_used}/{stats.kv_blocks_total}",
            queues=f"{stats.bootstrap}/{stats.prealloc}/{stats.transfer}/{stats.running}",
            retracted=stats.retracted,
        )
        self._at, self._before = now, replace(count)
