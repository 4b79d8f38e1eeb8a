"""One thing that is wrong, or remarkable, about a group: a stable code, where, what values, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pdcore.config.yaml_file import Trouble, Unreadable
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


_WRITES_ONE: Final = "pdcore group init MODE writes one"
_UNREADABLE: Final[Mapping[Trouble, str]] = {
    "missing": f"name a file that is there; {_WRITES_ONE}",
    "directory": "name the file in it",
    "forbidden": "let this user read it, or run the command as one who may",
    "broken": "look at the disk, or name another file",
    "too_long": "leave out what is no part of a group",
    "encoding": "save it as UTF-8",
    "syntax": f"write plain YAML there, texts with special characters in quotes; {_WRITES_ONE}",
    "alias": "write the value in its place; aliases are not read",
    "depth": "nothing in a group is nested so deeply; take it out",
    "twice": "keep one of the two",
}


def unreadable(wrong: Unreadable) -> Finding:
    """What stands against a file that is no bounded plain YAML."""
    (problem,) = wrong.problems
    return Finding(code="file_unreadable", path="", message=problem, remedy=_UNREADABLE[wrong.trouble])


def refused(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of ``findings`` that stand against the spec."""
    return tuple(finding for finding in findings if finding.severity == "refused")


def listed(items: Iterable[str]) -> list[Json]:
    """Several texts as one of a finding's values."""
    return list(items)
