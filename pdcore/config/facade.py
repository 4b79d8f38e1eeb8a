"""Settings of the process that registers an engine whose ranks are all foreign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pdcore.config.engine import ENGINE
from pdcore.config.process import COMMON, LISTEN, CommonConfig
from pdcore.config.setting import Setting, integer, text

_AS_FOR_ENGINES: Final = ("bootstrap_port", "instance_id", "take_over", "lease_ttl_s")

FACADE: Final = (
    *COMMON,
    *(setting for setting in LISTEN if setting.name == "host"),
    *(setting for setting in ENGINE if setting.name in _AS_FOR_ENGINES),
    Setting(name="url", help="Where the engine's own leader answers HTTP.", parse=text, metavar="URL"),
    Setting(name="model_name", help="Name clients ask for.", parse=text),
    Setting(
        name="context_length",
        help="The model's context in tokens.",
        parse=integer(1, 1 << 24),
        default="8192",
        metavar="TOKENS",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FacadeConfig(CommonConfig):
    """One foreign prefill instance; the flags' help says what each field means."""

    host: str
    bootstrap_port: int
    instance_id: str | None
    take_over: bool
    lease_ttl_s: int
    url: str
    model_name: str
    context_length: int
