"""Settings of every process: one table each, read once into a frozen dataclass.

A value comes from the command line, else the environment (``PDCORE_…``), else ``pdcore.toml``, else its default.
The environment is read here and nowhere else. Everything that is wrong is reported together, each problem naming
flag and variable. A setting added to a table below shows up in ``--help``, the environment and the file at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pdcore.errors import ConfigError
from pdcore.setting import CONFIG_FILE, Setting, flag, integer, name, one_of, path, read_file, seconds, text

ConfigT = TypeVar("ConfigT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

COMMON: Final = (
    Setting(
        name="store",
        help="Where the keyspace lives: etcd://HOST:PORT[,HOST:PORT...]",
        parse=text,
        default="etcd://127.0.0.1:2379",
        metavar="URL",
    ),
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
    Setting(
        name="store_timeout_s",
        help="Deadline of one call to the store.",
        parse=seconds(0.1, 60),
        default="3",
        metavar="SECONDS",
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

ENGINE: Final = (
    *COMMON,
    *LISTEN,
    Setting(
        name="role",
        help="prefill, decode, or unified (both phases in one).",
        parse=one_of("prefill", "decode", "unified"),
    ),
    Setting(
        name="model",
        help="Hugging Face directory of the model; the cached demo model if it is there.",
        parse=path,
        metavar="DIR",
    ),
    Setting(name="model_name", help="Name clients ask for; the directory's name unless given.", parse=text),
    Setting(
        name="port",
        help="HTTP port (prefill 8001, decode 8100, unified 8200; 0 picks a free one).",
        parse=integer(0, 65535),
        metavar="PORT",
    ),
    Setting(
        name="bootstrap_port",
        help="Bootstrap port of a prefill instance; 0 picks a free one.",
        parse=integer(0, 65535),
        default="18800",
        metavar="PORT",
    ),
    Setting(
        name="instance_id",
        help="Stable name of this instance; {role}-{host}-{port} unless given.",
        parse=name,
    ),
    Setting(
        name="take_over",
        help="Take the instance id from an incumbent that still answers.",
        parse=flag,
        default="false",
    ),
    Setting(
        name="lease_ttl_s",
        help="TTL of the registration lease.",
        parse=integer(5, 60),
        default="10",
        metavar="SECONDS",
    ),
    Setting(name="device", help="auto, cpu or npu.", parse=one_of("auto", "cpu", "npu"), default="auto"),
    Setting(
        name="dtype",
        help="float32 or bfloat16; computing and KV cache.",
        parse=one_of("float32", "bfloat16"),
        default="float32",
    ),
    Setting(
        name="block_size", help="Tokens per KV block.", parse=integer(1, 1024), default="16", metavar="TOKENS"
    ),
    Setting(
        name="kv_tokens",
        help="Capacity of the KV cache in tokens; rounded down to whole blocks.",
        parse=integer(16, 1 << 30),
        default="32768",
        metavar="TOKENS",
    ),
    Setting(
        name="max_model_len",
        help="Longest context; the model's own limit unless given.",
        parse=integer(1, 1 << 24),
        metavar="TOKENS",
    ),
    Setting(
        name="max_batch",
        help="Most requests in one step.",
        parse=integer(1, 4096),
        default="128",
        metavar="N",
    ),
    Setting(
        name="max_prefill_tokens",
        help="Most prompt tokens computed in one step.",
        parse=integer(1, 1 << 20),
        default="512",
        metavar="TOKENS",
    ),
    Setting(
        name="max_queue",
        help="Most requests held by the instance before it answers 429.",
        parse=integer(1, 1 << 20),
        default="1024",
        metavar="N",
    ),
    Setting(
        name="num_reserved_decode_tokens",
        help="Tokens kept free for each admitted request to grow.",
        parse=integer(0, 1 << 20),
        default="64",
        metavar="TOKENS",
    ),
    Setting(
        name="transfer_threads",
        help="Threads that write KV to decode ranks.",
        parse=integer(1, 64),
        default="4",
        metavar="N",
    ),
    Setting(
        name="torch_threads",
        help="Threads of one rank's computation; the machine's cores unless given.",
        parse=integer(1, 1024),
        metavar="N",
    ),
)

ROUTER: Final = (
    *COMMON,
    *LISTEN,
    Setting(
        name="port",
        help="HTTP port; 0 picks a free one.",
        parse=integer(0, 65535),
        default="8000",
        metavar="PORT",
    ),
    Setting(
        name="router_id", help="Stable name of this router; router-{host}-{port} unless given.", parse=name
    ),
    Setting(
        name="lease_ttl_s",
        help="TTL of the registration lease.",
        parse=integer(5, 60),
        default="10",
        metavar="SECONDS",
    ),
    Setting(
        name="connect_timeout_s",
        help="Budget of one connection to an engine.",
        parse=seconds(0.05, 60),
        default="2",
        metavar="SECONDS",
    ),
    Setting(
        name="first_byte_timeout_s",
        help="Budget until an engine's response head.",
        parse=seconds(0.1, 86400),
        default="600",
        metavar="SECONDS",
    ),
    Setting(
        name="idle_timeout_s",
        help="Longest silence between two chunks of an answer.",
        parse=seconds(0.1, 86400),
        default="120",
        metavar="SECONDS",
    ),
    Setting(
        name="max_attempts",
        help="Most pairs tried for one request before its first byte.",
        parse=integer(1, 16),
        default="3",
        metavar="N",
    ),
    Setting(
        name="max_in_flight",
        help="Most requests at once before the router answers 429.",
        parse=integer(1, 1 << 20),
        default="4096",
        metavar="N",
    ),
)

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
        name="drain_timeout_s",
        help="How long ending lets requests in flight finish.",
        parse=seconds(0, 3600),
        default="5",
        metavar="SECONDS",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """What every process knows."""

    store: str
    cluster: str
    log_format: str
    log_level: str
    store_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig(CommonConfig):
    """What every process that serves HTTP knows."""

    host: str
    request_timeout_s: float
    max_body_bytes: int
    drain_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ListenConfig):
    """One engine instance; the flags' help says what each field means."""

    role: str
    model: Path
    model_name: str | None
    port: int | None
    bootstrap_port: int
    instance_id: str | None
    take_over: bool
    lease_ttl_s: int
    device: str
    dtype: str
    block_size: int
    kv_tokens: int
    max_model_len: int | None
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    num_reserved_decode_tokens: int
    transfer_threads: int
    torch_threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(ListenConfig):
    """One router; the flags' help says what each field means."""

    port: int
    router_id: str | None
    lease_ttl_s: int
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    max_attempts: int
    max_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """A cluster on this machine; the flags' help says what each field means."""

    store: str | None
    cluster: str
    log_format: str
    log_level: str
    store_timeout_s: float
    prefill: int
    decode: int
    unified: int
    model: Path
    model_name: str | None
    port: int
    etcd_port: int
    data_dir: Path | None
    drain_timeout_s: float


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where pdcore keeps what it made once for this user (converted models): ``PDCORE_CACHE``, else XDG's."""
    env = os.environ if environ is None else environ
    if env.get("PDCORE_CACHE"):
        return Path(env["PDCORE_CACHE"])
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdcore"


def demo_model_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the converted demo model lies once ``pdcore demo-model`` has made it."""
    return cache_directory(environ) / "models" / "SmolLM2-135M-Instruct"


def load(
    config: type[ConfigT],
    settings: Sequence[Setting],
    flags: Mapping[str, str | None],
    *,
    section: str,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, str | None] | None = None,
) -> ConfigT:
    """Build ``config`` from the four sources, or raise :class:`ConfigError` with every problem.

    ``flags`` holds the command line by setting name (plus ``config``, the file). ``section`` is the process's table
    in the file; keys outside any table hold for every process. ``defaults`` adds defaults only known at run time.
    """
    env = os.environ if environ is None else environ
    file_values, problems = read_file(
        flags.get("config") or env.get("PDCORE_CONFIG"), section, settings, sections=_SECTIONS
    )
    values: dict[str, object] = {}
    for setting in settings:
        raw = _first_given(setting, flags, env, file_values, defaults or {})
        if raw is None:
            values[setting.name] = None
            continue
        try:
            values[setting.name] = setting.parse(raw)
        except ValueError as wrong:
            shown = "the value" if setting.secret else str(wrong)
            problems.append(f"{setting.flag} / {setting.variable}: {shown}")
    optional = {f.name for f in fields(config) if "None" in str(f.type)}  # type: ignore[arg-type]
    problems += [
        f"{s.flag} / {s.variable} is missing: {s.help}"
        for s in settings
        if values.get(s.name, "") is None and s.name not in optional
    ]
    if problems:
        raise ConfigError(*problems)
    return config(**values)


def options(settings: Sequence[Setting]) -> Callable[[CommandT], CommandT]:
    """A decorator that gives a click command one option per setting, and ``--config``."""

    def decorate(command: CommandT) -> CommandT:
        for setting in reversed(settings):
            default = f" [default: {setting.default}]" if setting.default is not None else ""
            help_text = f"{setting.help}{default} [{setting.variable}]"
            command = click.option(setting.flag, setting.name, metavar=setting.metavar, help=help_text)(
                command
            )
        file_help = f"TOML file with the same names; ./{CONFIG_FILE} if it is there. [PDCORE_CONFIG]"
        return click.option("--config", "config", metavar="FILE", help=file_help)(command)

    return decorate


def _first_given(
    setting: Setting,
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    file_values: Mapping[str, str],
    defaults: Mapping[str, str | None],
) -> str | None:
    given = flags.get(setting.name)
    if given is not None:
        return given
    if env.get(setting.variable):
        return env[setting.variable]
    if setting.name in file_values:
        return file_values[setting.name]
    return defaults.get(setting.name) or setting.default


_SECTIONS: Final = {"engine": ENGINE, "router": ROUTER, "up": UP}
