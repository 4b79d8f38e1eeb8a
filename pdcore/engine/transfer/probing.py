"""Probe slots: the proof that a prefill rank can still write to this decode rank, asked for while the pair is idle.

Each known rank pair has a probe slot of its own until the pair's link is gone, so that a late record can only land where
nobody else looks. Which seq may write it changes with every probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.engine import Receiver
from pdcore.engine.transfer.prefill_link import PrefillLink
from pdcore.engine.transfer.slot import SlotArray
from pdcore.telemetry import Logger

_ROOM: Final = 0


class Probing:
    """The probe slots of a decode rank. ``next_seq`` gives seqs that nothing else uses."""

    def __init__(
        self, memory: memoryview, receiver: Receiver, next_seq: Callable[[], int], log: Logger
    ) -> None:
        self._slots = SlotArray(memory)
        self._receiver = receiver
        self._next_seq = next_seq
        self._log = log
        self._free = list(range(self._slots.count - 1, -1, -1))
        self._owners: dict[int, PrefillLink] = {}

    def begin(self, link: PrefillLink, now: float) -> None:
        """Ask for a record; not where all probe slots are taken."""
        if link.probe is None:
            if not self._free:
                return
            link.probe = self._free.pop()
            self._owners[link.probe] = link
        seq = self._next_seq()
        self._receiver.allow(link.token, seq)
        self._slots.watch(link.probe, seq=seq, room=_ROOM)
        link.liveness.probing(seq, now)
        link.put("probe", wire.Probe(token=link.token, seq=seq, probe=link.probe), now)

    def end(self, link: PrefillLink, now: float, why: str = "") -> None:
        """The probe under way was seen, or (``why``) was not."""
        if link.probe is not None and link.liveness.probe_seq is not None:
            self._slots.forget(link.probe)
            self._receiver.revoke(link.token, link.liveness.probe_seq)
        if why and not link.liveness.down:
            self._log.warning("peer down", peer=link.name, reason=why)
        link.liveness.probe_ended(now, why)

    @property
    def end_of_watched(self) -> int:
        """The index behind the last probe slot that is watched."""
        return self._slots.end

    def seen(self) -> Iterator[PrefillLink]:
        """Links whose probe has arrived."""
        return (self._owners[index] for index, _slot in self._slots.look())

    def release(self, link: PrefillLink) -> None:
        """The link is gone: nothing of it can land any more."""
        if link.probe is not None:
            self._slots.forget(link.probe)
            self._free.append(link.probe)
            del self._owners[link.probe]
            link.probe = None
