"""Settings of a machine that runs members of groups: the ports they may take, and the interface that carries KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from pdcore.config.setting import Setting, text

DEFAULT_PORTS: Final = "40000-40063"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports ``low`` to ``high``, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, value: str) -> Self:
        """``LOW-HIGH``; ValueError with the end of a sentence."""
        low, dash, high = value.strip().partition("-")
        if not (dash and _is_port(low) and _is_port(high) and int(low) <= int(high)):
            raise ValueError(f"{value!r} must be LOW-HIGH with ports from 1 to 65535, the lower one first")
        return cls(int(low), int(high))

    def __len__(self) -> int:
        return self.high - self.low + 1

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @property
    def ports(self) -> range:
        """Every port of it, in order."""
        return range(self.low, self.high + 1)


MEMBER_NETWORK: Final = (
    Setting(
        name="service_port_range",
        help="Ports of members that cannot pick their own, LOW-HIGH; the group's network.service_port_range unless "
        f"given, or {DEFAULT_PORTS}. For a group's file.",
        parse=PortRange.parse,
        metavar="LOW-HIGH",
    ),
    Setting(
        name="kv_transfer_ifname",
        help="The interface of this machine that carries KV; the group's network.kv_transfer_ifname unless given, or "
        "the only routable one. For a group's file.",
        parse=text,
        metavar="NAME",
    ),
)


def _is_port(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535
