"""One thing that is wrong, or remarkable, about a group: a stable code, where, what values, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pdcore.errors import ConfigError
from pdcore.topology.records import Json

Severity = Literal["refused", "advisory"]
SEVERITIES: Final[tuple[Severity, ...]] = ("refused", "advisory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``path`` is where in the spec; ``values`` what stands there by name, both sides' where two are compared.

    ``message`` and ``remedy`` are sentences without an end; an ``advisory`` refuses nothing.
    """

    code: str
    path: str
    message: str
    remedy: str
    values: Mapping[str, Json] = field(default_factory=dict)
    severity: Severity = "refused"

    def document(self) -> dict[str, Json]:
        """The same for programs."""
        return {
            "code": self.code,
            "severity": self.severity,
            "path": self.path,
            "message": self.message,
            "values": dict(self.values),
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}; {self.remedy} [{self.code}]"


class SpecRefused(ConfigError):
    """A group spec cannot be accepted: every reason, advisories left out."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(*(str(finding) for finding in self.findings))


def unreadable(problem: str) -> Finding:
    """What stands against a file that is no bounded plain YAML; ``problem`` names it."""
    return Finding(
        code="file_unreadable",
        path="",
        message=problem,
        remedy="name a YAML file without aliases and repeated keys; pdcore group init MODE writes one",
    )


def refused(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of ``findings`` that stand against the spec."""
    return tuple(finding for finding in findings if finding.severity == "refused")


def listed(items: Iterable[str]) -> list[Json]:
    """Several texts as one of a finding's values."""
    return list(items)
