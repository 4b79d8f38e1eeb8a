"""Settings of the process that keeps the store which memfabric before 1.2 needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pdcore.config.engine import ENGINE
from pdcore.config.process import COMMON, LISTEN, CommonConfig
from pdcore.config.setting import Setting, integer

MEMFABRIC_STORE: Final = (
    *COMMON,
    *(setting for setting in LISTEN if setting.name == "host"),
    *(setting for setting in ENGINE if setting.name == "lease_ttl_s"),
    Setting(
        name="port",
        help="Port of memfabric's store.",
        parse=integer(1, 65535),
        default="10002",
        metavar="PORT",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemfabricStoreConfig(CommonConfig):
    """The store's own address, and how long its word in the keyspace outlives it."""

    host: str
    lease_ttl_s: int
    port: int
