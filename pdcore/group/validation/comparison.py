"""One thing that prefill and decode must agree on, and how a comparison ends: agree, differ, or nobody can tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pdcore.group.finding import Finding
from pdcore.topology.records import Json

Verdict = Literal["agree", "differ", "undecidable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How ``factor`` compares. ``why`` says what goes wrong, or what is not known; the values as people wrote them."""

    factor: str
    code: str
    verdict: Verdict
    prefill: Json
    decode: Json
    path: str
    why: str = ""
    remedy: str = ""

    def findings(self) -> Iterator[Finding]:
        """Nothing where they agree, a refusal where they differ, advice where nobody can tell."""
        if self.verdict == "agree":
            return
        shown = f"prefill has {_said(self.prefill)}, decode {_said(self.decode)}"
        values: dict[str, Json] = {"factor": self.factor, "prefill": self.prefill, "decode": self.decode}
        if self.verdict == "differ":
            yield Finding(
                code=self.code,
                path=self.path,
                message=f"{self.factor}: {shown}{f': {self.why}' if self.why else ''}",
                remedy=self.remedy or "give both the same",
                values=values,
            )
            return
        yield Finding(
            code="pairing_unverified",
            path=self.path,
            message=f"{self.factor} cannot be compared: {shown}{f'; {self.why}' if self.why else ''}",
            remedy=self.remedy or "write it for both roles",
            values=values,
            severity="advisory",
        )


def _said(value: Json) -> str:
    return "nothing" if value is None else str(value)
