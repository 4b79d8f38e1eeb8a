"""Settings by which a router knows clients, operators and engines, and they know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.config.process import ListenConfig
from pdcore.config.setting import Setting, integer, path

SECURITY: Final = (
    Setting(
        name="api_keys_file",
        help="File of the clients' API keys, one per line: SHA-256 in hex and a name. Everybody is served unless given.",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="admin_port",
        help="Port of its own for /pdcore/..., /workers, /stats and /metrics; 0 picks a free one.",
        parse=integer(0, 65535),
        metavar="PORT",
    ),
    Setting(
        name="admin_token_file",
        help="File of the token that those views ask for (Authorization: Bearer).",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="engine_token_file",
        help="File of the token that is sent to engines (Authorization: Bearer).",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="engine_ca",
        help="PEM file of the authorities that engines at https addresses are known by; the machine's own unless given.",
        parse=path,
        metavar="FILE",
    ),
    Setting(name="tls_cert", help="PEM file of the certificate to serve with.", parse=path, metavar="FILE"),
    Setting(name="tls_key", help="PEM file of that certificate's key.", parse=path, metavar="FILE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig(ListenConfig):
    """Where a router's secrets are; the flags' help says what each file holds."""

    api_keys_file: Path | None = None
    admin_port: int | None = None
    admin_token_file: Path | None = None
    engine_token_file: Path | None = None
    engine_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
