"""What a user writes about a group: the frozen types behind the YAML file, and reading it. Pure but for the file.

The types are the schema: a field added here is read, documented, published and, unless it is a role's own, inherited. A
spec keeps the document it was read from; that is what is saved, so that nothing gets in that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final, Literal

from pdcore.config.member_network import DEFAULT_PORTS
from pdcore.config.yaml_file import parse_yaml, read_yaml
from pdcore.group.finding import Finding, SpecRefused
from pdcore.group.kinds import (
    Anything,
    Choice,
    Items,
    Number,
    Problems,
    Record,
    Switch,
    Table,
    Text,
    Whole,
    declared,
    says,
    shown,
)
from pdcore.topology.records import Json

ModeName = Literal[
    "pdcore",
    "vllm-nixl",
    "vllm-mooncake",
    "sglang-mooncake",
    "sglang-nixl",
    "vllm-ascend-mooncake",
    "custom",
]
Backend = Literal["pdcore", "vllm", "sglang", "custom"]
Vendor = Literal["cpu", "nvidia", "ascend", "amd", "hygon", "metax", "mthreads", "cambricon", "iluvatar"]
RoleName = Literal["prefill", "decode", "router"]
Readiness = Literal["any_per_role", "all"]
KvLoadFailurePolicy = Literal["fail", "recompute"]
RouterProtocol = Literal["bootstrap", "nixl", "mooncake", "ascend-layerwise"]
CacheKind = Literal["local", "shared"]
CacheProvider = Literal["lmcache", "mooncake", "meshfusion"]

MODES: Final[tuple[ModeName, ...]] = (
    "pdcore",
    "vllm-nixl",
    "vllm-mooncake",
    "sglang-mooncake",
    "sglang-nixl",
    "vllm-ascend-mooncake",
    "custom",
)
BACKENDS: Final[tuple[Backend, ...]] = ("pdcore", "vllm", "sglang", "custom")
VENDORS: Final[tuple[Vendor, ...]] = (
    *("cpu", "nvidia", "ascend"),
    *("amd", "hygon", "metax", "mthreads", "cambricon", "iluvatar"),
)
ROLES: Final[tuple[RoleName, ...]] = ("prefill", "decode", "router")
ENGINE_ROLES: Final[tuple[RoleName, ...]] = ("prefill", "decode")
PROTOCOLS: Final[tuple[RouterProtocol, ...]] = ("bootstrap", "nixl", "mooncake", "ascend-layerwise")
MAX_REPLICAS: Final = 512
DEFAULT_SERVICE_PORTS: Final = DEFAULT_PORTS
ROUTER_CPU: Final = 2.0
ROUTER_MEMORY: Final = "2Gi"

_NAME: Final = Text(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", "1 to 63 of A-Z a-z 0-9 . - _")
_WORDS: Final = Text(words=True, empty=True)
_PORTS: Final = Text(r"\d{1,5}-\d{1,5}", "LOW-HIGH")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSelector:
    """Which accelerators a member may get. Two of ``gpu_ids`` on several machines make it span them."""

    gpu_ids: tuple[str, ...] | None = field(
        default=None,
        metadata=says(
            Items(Text(r"[^\s:]+:[^\s:]+:\d+", "MACHINE:TYPE:INDEX")),
            "accelerators to choose from, as MACHINE:TYPE:INDEX",
        ),
    )
    gpus_per_replica: int | None = field(
        default=None, metadata=says(Whole(1, 4096), "how many each member gets")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedKvCache:
    """A KV cache beyond the accelerator's memory. With no ``kind``, as in an empty mapping, there is none."""

    kind: CacheKind | None = field(
        default=None,
        metadata=says(Choice(("local", "shared")), "local (in each member's process) or shared (a service)"),
    )
    provider: CacheProvider | None = field(
        default=None,
        metadata=says(
            Choice(("lmcache", "mooncake", "meshfusion"), fold=True), "who runs the shared service"
        ),
    )
    service: str | None = field(
        default=None, metadata=says(Text(r"\S+", "HOST:PORT or a URL"), "where the shared service answers")
    )
    size: str | None = field(
        default=None, metadata=says(_WORDS, "how much memory a local cache takes, in bytes or like 20Gi")
    )
    ratio: float | None = field(
        default=None, metadata=says(Number(), "the same as a multiple of the accelerator's KV cache (SGLang)")
    )
    options: Mapping[str, Json] | None = field(
        default=None,
        metadata=says(Table(Anything()), "further options for the connector, passed on as they are"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a router needs of its machine."""

    cpu: float | None = field(default=None, metadata=says(Number(), "cores (2 unless given)"))
    memory: str | None = field(default=None, metadata=says(_WORDS, "bytes, or like 2Gi (2Gi unless given)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What KV moves over, and the ports members may take."""

    kv_transfer_ifname: str | None = field(
        default=None,
        metadata=says(
            Text(r"[^\s/]{1,15}", "an interface's name"),
            "the interface that carries KV; the only routable one unless given",
        ),
    )
    service_port_range: str | None = field(
        default=None,
        metadata=says(
            _PORTS, f"ports of engines that cannot pick their own ({DEFAULT_SERVICE_PORTS} unless given)"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """How prefill and decode are split."""

    mode: ModeName = field(metadata=says(Choice(MODES), f"one of {', '.join(MODES)}"))
    vendor: Vendor | None = field(
        default=None, metadata=says(Choice(VENDORS), "which accelerators; needed only where several would do")
    )
    readiness: Readiness = field(
        default="any_per_role",
        metadata=says(
            Choice(("any_per_role", "all")),
            "Running with one ready member per role, or only with all of them",
        ),
    )
    kv_load_failure_policy: KvLoadFailurePolicy = field(
        default="fail",
        metadata=says(
            Choice(("fail", "recompute")), "what decode does when KV that it was promised does not come"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overridable:
    """What a role takes from the group where it says nothing (null), and replaces as a whole where it does."""

    backend: Backend | None = field(
        default=None,
        metadata=says(
            Choice(BACKENDS, fold=True, code="engine_unsupported"), "the engine; the mode's own unless given"
        ),
    )
    backend_version: str | None = field(
        default=None,
        metadata=says(Text(r"[^\s]{1,64}", "a version, as a text", words=True), "the engine's version"),
    )
    image_name: str | None = field(
        default=None, metadata=says(Text(r"\S+", "an image's name"), "the container image")
    )
    run_command: str | None = field(
        default=None, metadata=says(Text(), "a command line instead of the mode's own")
    )
    backend_parameters: tuple[str, ...] | None = field(
        default=None, metadata=says(Items(_WORDS), "the engine's flags, as --flag=value or as two items")
    )
    env: Mapping[str, str] | None = field(
        default=None, metadata=says(Table(_WORDS, r"[^=\s]{1,256}"), "environment variables")
    )
    gpu_selector: GpuSelector | None = field(
        default=None, metadata=says(Record(GpuSelector), "which accelerators")
    )
    worker_selector: Mapping[str, str] | None = field(
        default=None, metadata=says(Table(_WORDS), "labels of the machines that may run it")
    )
    gpu_type_selector: tuple[str, ...] | None = field(
        default=None, metadata=says(Items(Text()), "the accelerator's type, as the machines name it")
    )
    extended_kv_cache: ExtendedKvCache | None = field(
        default=None, metadata=says(Record(ExtendedKvCache), "a KV cache beyond the accelerator's memory")
    )
    speculative_config: Mapping[str, Json] | None = field(
        default=None, metadata=says(Table(Anything()), "speculative decoding, in the engine's words")
    )
    lora_list: tuple[str, ...] | None = field(
        default=None, metadata=says(Items(Text()), "LoRA adapters (not with disaggregation)")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec(Overridable):
    """One of prefill, decode and router."""

    name: str = field(
        metadata=says(Text(r"[A-Za-z0-9_.-]{1,64}", "a role's name"), f"one of {', '.join(ROLES)}")
    )
    replicas: int = field(
        default=1,
        metadata=says(
            Whole(
                1,
                MAX_REPLICAS,
                f"write 1 to {MAX_REPLICAS}; a role that is not wanted is removed, not set to 0",
            ),
            "how many members",
        ),
    )
    dependencies: tuple[str, ...] | None = field(
        default=None,
        metadata=says(Items(Text()), "roles that need a running member first; a router's are all others"),
    )
    resources: Resources | None = field(
        default=None, metadata=says(Record(Resources), "what a router needs of its machine")
    )
    protocol: RouterProtocol | None = field(
        default=None,
        metadata=says(
            Choice(PROTOCOLS),
            "in mode custom: the router is pdcore's own and speaks this handshake with the engines",
        ),
    )


_ELSEWHERE: Final = (
    ("replicas", "remove it; a group is scaled by roles[].replicas and ended by deleting it"),
    ("scaling_schedule", "remove it; nothing scales by a schedule here, call pdcore group scale from one"),
    (
        "gather",
        "remove it; where members are placed is Kubernetes' business (topology constraints of its pods)",
    ),
    ("mode", "move it under disaggregation"),
    ("vendor", "move it under disaggregation"),
    ("readiness", "move it under disaggregation"),
    ("kv_load_failure_policy", "move it under disaggregation"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec(Overridable):
    """One model's deployment as prefill, decode and routers."""

    name: str = field(metadata=says(_NAME, "the group's name, a part of its keys"))
    model: str = field(metadata=says(Text(), "a directory, or the name of a model that the engine fetches"))
    model_name: str | None = field(
        default=None,
        metadata=says(
            Text(r"[^\s,]{1,128}", "a name without blanks and commas"),
            "what clients ask for; the last part of model unless given",
        ),
    )
    description: str | None = field(default=None, metadata=says(Text(), "for people"))
    disaggregation: Disaggregation = field(
        metadata=says(Record(Disaggregation), "how prefill and decode are split")
    )
    network: Network = field(
        default_factory=Network,
        metadata=says(Record(Network), "what KV moves over, and the ports of members"),
    )
    restart_on_error: bool = field(
        default=True, metadata=says(Switch(), "whether members that end are started again")
    )
    roles: tuple[RoleSpec, ...] = field(
        default=(), metadata=says(Items(Record(RoleSpec)), "prefill, decode and router")
    )
    document: Mapping[str, Json] = field(default_factory=dict, repr=False, compare=False)

    @property
    def mode(self) -> ModeName:
        return self.disaggregation.mode

    @property
    def vendor(self) -> Vendor | None:
        return self.disaggregation.vendor

    @property
    def readiness(self) -> Readiness:
        return self.disaggregation.readiness

    @property
    def kv_load_failure_policy(self) -> KvLoadFailurePolicy:
        return self.disaggregation.kv_load_failure_policy

    @property
    def served_name(self) -> str:
        """What clients ask for."""
        return self.model_name or self.model.rstrip("/").rpartition("/")[2] or self.model

    def role(self, name: str) -> RoleSpec | None:
        """The first role of that name."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def replicas(self) -> dict[str, int]:
        """How many members each role wants, by role."""
        return {role.name: role.replicas for role in self.roles}


OVERRIDES: Final = tuple(one.name for one in fields(Overridable))
"""Every field a role may override: all it has but its own."""
ROLE_OWN: Final = tuple(one.name for one in declared(RoleSpec) if one.name not in OVERRIDES)
GROUP: Final = Record(GroupSpec, elsewhere=_ELSEWHERE)


def read_spec(file: Path) -> GroupSpec:
    """The spec in ``file``. SpecRefused with every problem of form; ConfigError for a file that is no bounded YAML."""
    return spec_of(read_yaml(file, named="the group's file"))


def parse_spec(text: str, file: str) -> GroupSpec:
    """The spec that ``text`` is; ``file`` names it in a ConfigError."""
    return spec_of(parse_yaml(text, file))


def spec_of(document: object) -> GroupSpec:
    """The spec that ``document`` says, which it keeps. SpecRefused with every problem of form, unknown keys by name."""
    problems: Problems = []
    read = GROUP.read(document, "", problems)
    if not isinstance(document, dict) or not isinstance(read, GroupSpec):
        raise SpecRefused(problems if isinstance(document, dict) else [_no_mapping(document)])
    kept: dict[str, Json] = {}
    for key, value in document.items():
        kept[str(key)] = Anything().read(value, str(key), problems)
    return replace(read, document=kept)


def _no_mapping(document: object) -> Finding:
    said = "the file is empty" if document is None else f"the file is {shown(document)}, not a mapping"
    return Finding(
        code="wrong_value", path="", message=said, remedy="begin with what pdcore group init MODE writes"
    )
