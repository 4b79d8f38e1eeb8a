"""Settings of the commands that ask routers for their views."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.config.process import COMMON, CommonConfig
from pdcore.config.setting import Setting, path

ROUTERS_KEY: Final = (
    Setting(
        name="admin_token_file",
        help="File of the token that routers ask operators for; it is sent to every router in the keyspace.",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="router_ca",
        help="PEM file of the authorities that sign routers' certificates; the system's unless given.",
        parse=path,
        metavar="FILE",
    ),
)
OPERATOR: Final = (*COMMON, *ROUTERS_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConfig(CommonConfig):
    """The store, and how routers know an operator and he them."""

    admin_token_file: Path | None = None
    router_ca: Path | None = None
