"""Settings of an engine instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdcore.config.process import COMMON, LISTEN, ListenConfig
from pdcore.config.setting import (
    Setting,
    curve_secret,
    flag,
    host_and_port,
    integer,
    name,
    one_of,
    path,
    seconds,
    text,
)
from pdcore.config.sizes import token_count

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
        name="group",
        help="The group it is a member of; it pairs only with members of the same generation.",
        parse=name,
    ),
    Setting(
        name="generation",
        help="Which generation of that group it is of.",
        parse=integer(0, 2**31 - 1),
        default="0",
        metavar="N",
    ),
    Setting(
        name="tp",
        help="Tensor parallel size: ranks that share the heads of every layer.",
        parse=integer(1, 1024),
        default="1",
        metavar="N",
    ),
    Setting(
        name="cp",
        help="Context parallel size: ranks that share the tokens of a prompt; prefill only.",
        parse=integer(1, 1024),
        default="1",
        metavar="N",
    ),
    Setting(
        name="dp",
        help="Data parallel size: groups of cp * tp ranks, each with requests and a KV cache of its own.",
        parse=integer(1, 1024),
        default="1",
        metavar="N",
    ),
    Setting(
        name="nnodes",
        help="Machines that the instance spans; more than one need --instance-id.",
        parse=integer(1, 1024),
        default="1",
        metavar="N",
    ),
    Setting(
        name="node_rank",
        help="Which of those machines this is; the leader, which answers HTTP, is on 0.",
        parse=integer(0, 1023),
        default="0",
        metavar="K",
    ),
    Setting(
        name="devices_per_node",
        help="Ranks on one machine; an equal share of them unless given.",
        parse=integer(1, 1024),
        metavar="N",
    ),
    Setting(
        name="leader",
        help="HTTP address of the leader, asked for the instance by its other machines where the store does not tell.",
        parse=host_and_port,
        metavar="HOST:PORT",
    ),
    Setting(
        name="curve_secret",
        help="Secret key of CURVE (Z85, 40 characters) for ZMQ between an instance's processes; not a flag, where "
        "everybody could read it.",
        parse=curve_secret,
        secret=True,
    ),
    Setting(
        name="engine_token_file",
        help="File of the token that routers send (Authorization: Bearer); whoever does not is told only its health. "
        "Nobody is asked for one unless given.",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="advertise_ip",
        help="This machine's address for others, listened on as well; --host unless given.",
        parse=text,
        metavar="ADDRESS",
    ),
    Setting(
        name="kv_ifname",
        help="The network interface whose address that is. An instance of several machines that is given neither takes "
        "the only routable one.",
        parse=text,
        metavar="NAME",
        other_flags=("--kv-transfer-ifname",),
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
    Setting(
        name="device",
        help="auto, cpu, npu or cuda.",
        parse=one_of("auto", "cpu", "npu", "cuda"),
        default="auto",
    ),
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
        name="prefix_cache",
        help="on or off: prompts that begin like earlier ones reuse their KV (prefill and unified).",
        parse=one_of("on", "off"),
        default="on",
    ),
    Setting(
        name="per_chunk_sending",
        help="on or off: KV of a finished chunk travels while the next one, or the last layer, is computed (prefill).",
        parse=one_of("on", "off"),
        default="on",
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
        help="Longest context; also as 128k; the model's own limit unless given.",
        parse=token_count(1, 1 << 24),
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
        name="dp_rank_choice",
        help="Who chooses a prefill request's DP rank: the router, or the engine, which says so in the room directory.",
        parse=one_of("router", "engine"),
        default="router",
    ),
    Setting(
        name="num_reserved_decode_tokens",
        help="Tokens kept free for each admitted request to grow.",
        parse=integer(0, 1 << 20),
        default="64",
        metavar="TOKENS",
    ),
    Setting(
        name="transfer_engine",
        help="How KV moves: shm (one machine), tcp, mooncake (extra mooncake), memfabric (extra ascend); auto takes shm where both "
        "are on one machine, else tcp.",
        parse=one_of("auto", "shm", "tcp", "mooncake", "memfabric"),
        default="auto",
    ),
    Setting(
        name="transfer_secret",
        help="Whoever links to a rank for KV must know it, if it is set; the same for all instances of a cluster.",
        parse=text,
        secret=True,
    ),
    Setting(
        name="mooncake_protocol",
        help="tcp, rdma or ascend. Over tcp it listens on every interface and asks nobody who he is.",
        parse=one_of("tcp", "rdma", "ascend"),
        default="tcp",
    ),
    Setting(
        name="mooncake_device",
        help="Devices that mooncake may use, in its own words; its own choice unless given.",
        parse=text,
    ),
    Setting(
        name="memfabric_protocol",
        help="sdma (within a supernode) or device_rdma.",
        parse=one_of("sdma", "device_rdma"),
        default="sdma",
        other_variables=("ASCEND_MF_TRANSFER_PROTOCOL",),
    ),
    Setting(
        name="memfabric_store",
        help="tcp://HOST:PORT of the store that memfabric before 1.2 needs; later versions need none.",
        parse=text,
        metavar="URL",
        other_variables=("ASCEND_MF_STORE_URL",),
    ),
    Setting(
        name="transfer_threads",
        help="Threads that write KV to decode ranks.",
        parse=integer(1, 64),
        default="4",
        metavar="N",
        other_variables=("ASCEND_TRANSFER_THREADS",),
    ),
    Setting(
        name="peer_silence_s",
        help="How long a rank may answer nothing before requests that wait for it fail; more than its longest step.",
        parse=seconds(1, 3600),
        default="20",
        metavar="SECONDS",
    ),
    Setting(
        name="torch_threads",
        help="Threads of one rank's computation; the machine's cores unless given.",
        parse=integer(1, 1024),
        metavar="N",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ListenConfig):
    """One engine instance; the flags' help says what each field means."""

    role: str
    model: Path
    model_name: str | None
    port: int | None
    bootstrap_port: int
    instance_id: str | None
    group: str | None = None
    generation: int = 0
    tp: int
    cp: int
    dp: int
    nnodes: int
    node_rank: int
    devices_per_node: int | None
    leader: str | None
    curve_secret: str | None = field(repr=False)
    engine_token_file: Path | None
    advertise_ip: str | None
    kv_ifname: str | None
    take_over: bool
    lease_ttl_s: int
    device: str
    dtype: str
    block_size: int
    prefix_cache: str
    per_chunk_sending: str
    kv_tokens: int
    max_model_len: int | None
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    dp_rank_choice: str
    num_reserved_decode_tokens: int
    transfer_engine: str
    transfer_secret: str | None = field(repr=False)
    mooncake_protocol: str
    mooncake_device: str | None
    memfabric_protocol: str
    memfabric_store: str | None
    transfer_threads: int
    peer_silence_s: float
    torch_threads: int | None
