"""What a leader decides before it starts anything: names, ports, the model's text side. ConfigError or all of it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from pdcore.bearer import Token
from pdcore.config import EngineConfig
from pdcore.config.setting import name
from pdcore.engine.door import token_file
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.shard import shard_problems
from pdcore.engine.model.text import TextCodec
from pdcore.engine.placement import Placement, Sizes, place
from pdcore.engine.records import Identity
from pdcore.engine.transfer.choose import engine_names
from pdcore.errors import ConfigError
from pdcore.http_server import listen, port_of, url_of
from pdcore.registry import machine
from pdcore.registry.facade.documents import MAX_PREFILL_TOKENS
from pdcore.registry.rooms.opening import directory_name
from pdcore.topology.records import DP_RANK_CHOICE, ROOM_DIRECTORY, Json, Role
from pdcore.watched_files import WatchedFiles

DEFAULT_PORTS: Final = {"prefill": 8001, "decode": 8100, "unified": 8200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """A leader's fixed facts and its listening sockets. ``bootstrap`` only for prefill, ``token`` if one is asked for."""

    config: EngineConfig
    identity: Identity
    placement: Placement
    model: ModelConfig
    texts: TextCodec
    listener: socket.socket
    bootstrap: socket.socket | None
    token: WatchedFiles[Token] | None

    @property
    def rank_ip(self) -> str:
        """The address this leader listens on, as a number."""
        address: str = self.listener.getsockname()[0]
        return address


@contextmanager
def starting(config: EngineConfig) -> Iterator[Startup]:
    """Read the model's text side and bind the ports; leaving closes them."""
    placement = placement_of(config)
    model, texts = _model(config)
    token = token_file(config)
    role = cast(Role, config.role)
    with ExitStack() as stack:
        port = DEFAULT_PORTS[role] if config.port is None else config.port
        listener = stack.enter_context(listen(config.host, port, "port"))
        bootstrap = None
        if role == "prefill":
            bootstrap = stack.enter_context(listen(config.host, config.bootstrap_port, "bootstrap_port"))
        yield Startup(
            config=config,
            identity=_identity(config, role, listener, bootstrap),
            placement=placement,
            model=model,
            texts=texts,
            listener=listener,
            bootstrap=bootstrap,
            token=token,
        )


def placement_of(config: EngineConfig) -> Placement:
    """Where the ranks go. ConfigError when sizes, machines and role do not fit together."""
    engine_names(config.transfer_engine)  # refuses what no rank could open
    where = f"--nnodes / PDCORE_NNODES: {config.nnodes}"
    if config.nnodes > 1 and config.instance_id is None:
        # Parents on several machines have nothing in common from which each could make the same id.
        raise ConfigError(f"{where} machines need one --instance-id / PDCORE_INSTANCE_ID for all of them")
    if config.node_rank >= config.nnodes:
        raise ConfigError(
            f"--node-rank / PDCORE_NODE_RANK: {config.node_rank} is none of {config.nnodes} machines"
        )
    if config.cp > 1 and config.role != "prefill":
        raise ConfigError(
            f"--cp / PDCORE_CP: {config.cp} in a {config.role} instance; only prefill can split prompts"
        )
    return place(Sizes(dp=config.dp, cp=config.cp, tp=config.tp), config.nnodes, config.devices_per_node)


def shape_of(config: EngineConfig) -> str:
    """What all machines of an instance must have been started with."""
    return (
        f"role={config.role} dp={config.dp} cp={config.cp} tp={config.tp} nnodes={config.nnodes}"
        f" devices_per_node={config.devices_per_node} dtype={config.dtype} block_size={config.block_size}"
        f" kv_tokens={config.kv_tokens} transfer_engine={config.transfer_engine}"
    )


def _model(config: EngineConfig) -> tuple[ModelConfig, TextCodec]:
    if not config.model.is_dir():
        raise ConfigError(f"--model / PDCORE_MODEL: {config.model} is no directory")
    model = ModelConfig.from_directory(config.model)
    if config.max_model_len is not None and config.max_model_len > model.context_length:
        longest = f"the model's context is {model.context_length} tokens"
        raise ConfigError(
            f"--max-model-len / PDCORE_MAX_MODEL_LEN: {config.max_model_len} is too long: {longest}"
        )
    if problems := shard_problems(model, config.tp):
        raise ConfigError(*problems)
    return model, TextCodec.from_directory(config.model)


def _identity(
    config: EngineConfig, role: Role, listener: socket.socket, bootstrap: socket.socket | None
) -> Identity:
    instance_id = config.instance_id or f"{role}-{config.host}-{port_of(listener)}"
    try:
        name(instance_id)
    except ValueError as wrong:
        raise ConfigError(f"--instance-id / PDCORE_INSTANCE_ID: {wrong}") from None
    if config.generation and config.group is None:
        raise ConfigError(
            f"--generation / PDCORE_GENERATION: {config.generation} is of no use without --group"
        )
    return Identity(
        role=role,
        instance_id=instance_id,
        incarnation=secrets.token_hex(8),
        models=(config.model_name or _directory_name(config.model),),
        host=config.host,
        url=url_of(config.host, listener),
        bootstrap_port=None if bootstrap is None else port_of(bootstrap),
        block_size=config.block_size,
        machine=machine.machine(),
        boot_id=machine.boot_id(),
        pid=os.getpid(),
        extra=_extra(config, role),
        group=config.group or "",
        generation=config.generation,
    )


def _extra(config: EngineConfig, role: Role) -> dict[str, Json]:
    """What only prefill instances say about themselves."""
    if role != "prefill":
        return {}
    said: dict[str, Json] = {MAX_PREFILL_TOKENS: config.max_prefill_tokens}
    if config.dp_rank_choice == "engine":
        said |= {DP_RANK_CHOICE: "engine", ROOM_DIRECTORY: directory_name(config.redis_access)}
    return said


def _directory_name(model: Path) -> str:
    return model.absolute().resolve().name
