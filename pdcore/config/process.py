"""Settings that every process, or every process that serves HTTP, has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdcore.config.setting import Setting, integer, name, one_of, seconds, text
from pdcore.config.store import REDIS, STORE, StoreConfig

if TYPE_CHECKING:  # what only starts engines and routers need not load a logging library to read a file
    from pdcore.telemetry import LogFormat

COMMON: Final = (
    *STORE,
    *REDIS,
    Setting(
        name="cluster", help="Name of the keyspace; several can share a store.", parse=name, default="default"
    ),
    Setting(
        name="log_format",
        help="text or json, one event per line.",
        parse=one_of("text", "json"),
        default="text",
    ),
    Setting(
        name="log_level",
        help="debug, info, warning or error.",
        parse=one_of("debug", "info", "warning", "error"),
        default="info",
    ),
)

LISTEN: Final = (
    Setting(
        name="host",
        help="Address to listen on and to advertise; loopback unless you say otherwise.",
        parse=text,
        default="127.0.0.1",
    ),
    Setting(
        name="request_timeout_s",
        help="Whole budget of one request that names none.",
        parse=seconds(0.1, 86400),
        default="600",
        metavar="SECONDS",
    ),
    Setting(
        name="probe_timeout_s",
        help="How long an instance in doubt may take to say that it lives.",
        parse=seconds(0.05, 10),
        default="0.5",
        metavar="SECONDS",
    ),
    Setting(
        name="max_body_bytes",
        help="Largest request body.",
        parse=integer(1024, 1 << 30),
        default=str(8 << 20),
        metavar="BYTES",
    ),
    Setting(
        name="drain_timeout_s",
        help="How long SIGTERM lets requests in flight finish.",
        parse=seconds(0, 3600),
        default="30",
        metavar="SECONDS",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig(StoreConfig):
    """What every process knows."""

    cluster: str
    log_format: LogFormat
    log_level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig(CommonConfig):
    """What every process that serves HTTP knows."""

    host: str
    request_timeout_s: float
    probe_timeout_s: float
    max_body_bytes: int
    drain_timeout_s: float
