"""Settings of a whole cluster on this machine (``pdcore up``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdcore.config.member_network import MEMBER_NETWORK, PortRange
from pdcore.config.operator import ROUTERS_KEY
from pdcore.config.process import COMMON
from pdcore.config.setting import Setting, integer, path, seconds, text
from pdcore.config.store import StoreLogin

if TYPE_CHECKING:  # what only starts engines and routers need not load a logging library to read a file
    from pdcore.telemetry import LogFormat

UP: Final = (
    Setting(
        name="store",
        help="A store that runs already, instead of an etcd of its own.",
        parse=text,
        metavar="URL",
    ),
    *COMMON[1:],
    Setting(name="prefill", help="Prefill instances.", parse=integer(0, 64), default="1", metavar="N"),
    Setting(name="decode", help="Decode instances.", parse=integer(0, 64), default="1", metavar="N"),
    Setting(
        name="unified", help="Instances that do both phases.", parse=integer(0, 64), default="0", metavar="N"
    ),
    Setting(
        name="model",
        help="Hugging Face directory of the model; the demo model, made if it is not there yet.",
        parse=path,
        metavar="DIR",
    ),
    Setting(name="model_name", help="Name clients ask for; the directory's name unless given.", parse=text),
    Setting(
        name="port",
        help="HTTP port of the router; 0 picks a free one.",
        parse=integer(0, 65535),
        default="8000",
        metavar="PORT",
    ),
    Setting(
        name="etcd_port",
        help="Client port of the etcd it brings along; 0 picks a free one.",
        parse=integer(0, 65535),
        default="0",
        metavar="PORT",
    ),
    Setting(
        name="data_dir",
        help="Where that etcd keeps its data; a temporary directory unless given.",
        parse=path,
        metavar="DIR",
    ),
    Setting(
        name="torch_threads",
        help="Threads of one rank's computation; the machine's cores shared among the instances unless given.",
        parse=integer(1, 1024),
        metavar="N",
    ),
    Setting(
        name="drain_timeout_s",
        help="How long ending lets requests in flight finish.",
        parse=seconds(0, 3600),
        default="5",
        metavar="SECONDS",
    ),
    *MEMBER_NETWORK,
    *ROUTERS_KEY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig(StoreLogin):
    """A cluster on this machine; the flags' help says what each field means."""

    store: str | None
    cluster: str
    log_format: LogFormat
    log_level: str
    prefill: int
    decode: int
    unified: int
    model: Path
    model_name: str | None
    port: int
    etcd_port: int
    data_dir: Path | None
    torch_threads: int | None
    drain_timeout_s: float
    service_port_range: PortRange | None = None
    kv_transfer_ifname: str | None = None
    admin_token_file: Path | None = None
    router_ca: Path | None = None
