"""A small keyspace in values, written as registrars write it, and the overlay that watches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pdcore.registry.overlay import disappearing, probing
from pdcore.registry.overlay.suspect import Evidence, InstanceKey, Note, Outcome, Overlay, Probe
from pdcore.registry.overlay.view import View, view
from pdcore.topology import codec, keys
from pdcore.topology.records import DepartureReason, DepartureRecord, InstanceRecord, Record, StoreIdRecord
from pdcore.topology.topology import KeyChange, Stored, Topology, fold, relist
from tests.support.fleet import complete, instance_record


def prefill(incarnation: str = "inc-1", tp_size: int = 1, url: str = "http://127.0.0.1:1") -> InstanceRecord:
    return instance_record(incarnation=incarnation, tp_size=tp_size, url=url)


@dataclass
class World:
    """Writes go to ``topology`` and from there to ``overlay``, as a follower hands them over."""

    topology: Topology = field(default_factory=Topology.empty)
    overlay: Overlay = field(default_factory=Overlay)
    now: float = 100.0
    notes: list[Note] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(7))

    def __post_init__(self) -> None:
        self.write({keys.STORE_ID: StoreIdRecord(store_id="s1")})

    def write(self, changes: dict[str, Record | None]) -> None:
        """One revision."""
        at = self.topology.revision + 1
        values = [KeyChange(k, None if r is None else codec.encode(r), at) for k, r in changes.items()]
        self.become(fold(self.topology, at, values))

    def become(self, topology: Topology) -> None:
        """What the follower does with whatever it has read."""
        old, self.topology = self.topology, topology
        self.overlay, notes = disappearing.observe(self.overlay, old, topology, self.now, self.random)
        self.notes += notes

    def register(self, name: str, record: InstanceRecord) -> None:
        self.write({**complete(name, record)})

    def lose(self, name: str, *only: str) -> None:
        """The keys of an instance, or only some of them, go without a word."""
        own = only or tuple(
            key
            for key in self.topology.keys
            if key == keys.instance(name) or key.startswith(f"ranks/{name}/")
        )
        self.write(dict.fromkeys(own))

    def depart(self, name: str, incarnation: str, reason: DepartureReason = "left", *only: str) -> None:
        own = only or tuple(
            key
            for key in self.topology.keys
            if key == keys.instance(name) or key.startswith(f"ranks/{name}/")
        )
        said = DepartureRecord(incarnation=incarnation, reason=reason, by="test")
        self.write({**dict.fromkeys(own), keys.departure(name): said})

    def list_again(self, records: dict[str, Record], store_id: str = "s1", revision: int = 1) -> None:
        """A relist shows exactly these."""
        listed = {key: Stored(codec.encode(record), revision) for key, record in records.items()}
        listed[keys.STORE_ID] = Stored(codec.encode(StoreIdRecord(store_id=store_id)), revision)
        self.become(relist(self.topology, listed, revision))

    def accuse(self, key: InstanceKey, evidence: Evidence) -> None:
        self.overlay, notes = probing.accuse(self.overlay, self.topology, key, evidence, self.now)
        self.notes += notes

    def due(self, free: int = 32) -> tuple[Probe, ...]:
        """Start the probes that are due now."""
        self.overlay, probes = probing.start_probes(self.overlay, self.now, free)
        return probes

    def probe(self, outcome: Outcome, after_s: float = 5.0) -> list[Note]:
        """Let time pass, and every probe that is due end with ``outcome``."""
        self.now += after_s
        before = len(self.notes)
        for one in self.due():
            self.answer(one.key, outcome)
        return self.notes[before:]

    def answer(self, key: InstanceKey, outcome: Outcome) -> None:
        self.overlay, notes = probing.answered(self.overlay, key, outcome, self.now, self.random)
        self.notes += notes

    def view(self) -> View:
        return view(self.overlay, self.topology)

    def said(self) -> list[str]:
        return [note.kind for note in self.notes]
