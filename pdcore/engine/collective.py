"""What the ranks of one instance compute together: sums over tensor parallel ranks, joins over context parallel ones.

Ranks meet at a store (a file on one machine, the leader's address on several), build all groups in the same order, and
from then on talk to each other directly. Only tensors travel: nothing here pickles. Sockets listen on the rank's own
address. A rank that dies or stands still makes the others' next call raise :class:`CollectiveFailed` within seconds;
none of them can go on alone, so that is the end of the instance.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from pdcore.engine.device import Device
from pdcore.engine.interfaces import interface_with
from pdcore.engine.placement import Sizes
from pdcore.errors import CollectiveFailed
from pdcore.topology.keys import RankPosition

_JOINED: Final = "joined"


class Group(Protocol):
    """Some ranks of the instance, this one among them as ``rank`` of ``size``.

    Every rank of the group makes the same calls in the same order with tensors of the same shape.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, equal on all of them; may be ``tensor`` itself, changed."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """``[size, *tensor.shape]``, every rank's tensor in the order of ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A group of one: nothing to say to anybody."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0)


ALONE: Final = Alone()


@dataclass(frozen=True, slots=True)
class Groups:
    """``tp``: the ranks that share this one's tokens. ``cp``: those that hold the same heads and share its prompts."""

    tp: Group
    cp: Group

    @classmethod
    def single(cls) -> Groups:
        """For a rank that computes alone."""
        return cls(tp=ALONE, cp=ALONE)

    @property
    def leads(self) -> bool:
        """Whether this rank is the one of its DP group that samples."""
        return self.tp.rank == self.cp.rank == 0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where ranks leave each other words before they can talk. Small values, written once under their key."""

    store: Store

    def publish(self, key: str, value: str) -> None:
        """Leave ``value`` for the other ranks of the instance."""
        with _translated("rendezvous"):
            self.store.set(key, value)

    def lookup(self, key: str, within_s: float) -> str:
        """What a rank left under ``key``, waiting for it; CollectiveFailed when it does not come in time."""
        with _translated("rendezvous"):
            self.store.wait([key], timedelta(seconds=within_s))
            return bytes(self.store.get(key)).decode()


@dataclass(frozen=True, slots=True)
class _TorchGroup:
    """A group of several ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with _translated("all-reduce"):
            self.group.allreduce([tensor]).wait()
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        with _translated("all-gather"):
            self.group.allgather([list(gathered.unbind())], [tensor.contiguous()]).wait()
        return gathered


def meet(address: str, number: int, *, listen_fd: int | None, within_s: float) -> Rendezvous:
    """The rendezvous at ``address`` for rank ``number``: ``file://path`` (in a private directory) or ``tcp://ip:port``.

    Of the latter rank 0 serves the store on ``listen_fd``, a listening socket, so that the address was bound, and known
    to everybody, before any rank started. The store owns it from then on.
    """
    if address.startswith("file://"):
        return Rendezvous(FileStore(address.removeprefix("file://")))
    place = urlsplit(address)
    with _translated("rendezvous"):
        store = TCPStore(
            place.hostname or "",
            place.port or 0,
            is_master=number == 0,
            timeout=timedelta(seconds=within_s),
            wait_for_workers=False,
            master_listen_fd=listen_fd,
        )
    return Rendezvous(store)


@contextmanager
def join(
    rendezvous: Rendezvous,
    position: RankPosition,
    sizes: Sizes,
    *,
    device: Device,
    ip: str,
    start_s: float,
    timeout_s: float,
) -> Iterator[Groups]:
    """The groups of the rank at ``position``, whose sockets listen on ``ip``.

    All ranks of the instance must come within ``start_s``; afterwards none may keep the others waiting for longer than
    ``timeout_s``. Instances whose DP groups are single ranks need no groups, and open nothing.
    """
    if sizes.group == 1:
        yield Groups.single()
        return
    number, timeout = sizes.number(position), timedelta(seconds=timeout_s)
    with _translated("joining"):
        _wait_for_all(rendezvous.store, sizes.world, start_s)
        dist.init_process_group(
            _backend(device, ip), store=rendezvous.store, rank=number, world_size=sizes.world, timeout=timeout
        )
    try:
        with _translated("joining"):
            groups = _groups(position, sizes, timeout)
        yield groups
    finally:
        dist.destroy_process_group()


def _wait_for_all(store: Store, world: int, start_s: float) -> None:
    """Starting takes as long as the slowest rank's imports; what comes after is held to shorter deadlines."""
    if store.add(f"{_JOINED}/count", 1) == world:
        store.set(f"{_JOINED}/all", "")
    store.wait([f"{_JOINED}/all"], timedelta(seconds=start_s))


def _groups(position: RankPosition, sizes: Sizes, timeout: timedelta) -> Groups:
    """Every rank creates every group, also those it is not in, in one order: that is what names them."""
    mine: dict[str, Group] = {"tp": ALONE, "cp": ALONE}
    for kind, members in _members(sizes):
        if len(members) == 1:
            continue
        group = dist.new_group([sizes.number(member) for member in members], timeout=timeout)
        if position in members:
            mine[kind] = _TorchGroup(group, rank=members.index(position), size=len(members))
    return Groups(tp=mine["tp"], cp=mine["cp"])


def _members(sizes: Sizes) -> Iterator[tuple[str, tuple[RankPosition, ...]]]:
    for dp in range(sizes.dp):
        for cp in range(sizes.cp):
            yield "tp", tuple(RankPosition(dp, cp, tp) for tp in range(sizes.tp))
        for tp in range(sizes.tp):
            yield "cp", tuple(RankPosition(dp, cp, tp) for cp in range(sizes.cp))


def _backend(device: Device, ip: str) -> str:
    """The name of the backend that handles ``device``'s tensors and listens on ``ip``."""
    if device.is_host:
        return _gloo_on(ip)
    # hccl and nccl read these when their first group is made, and nothing else
    os.environ.setdefault("HCCL_IF_IP", ip)
    if (name := interface_with(ip)) is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    return device.collectives


@cache
def _gloo_on(ip: str) -> str:
    """Gloo as torch.distributed sets it up listens where the machine's name points to."""

    def create(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=ip)]
        options._timeout = timeout
        options._threads = 1  # a rank has one collective at a time
        return gloo(store, rank, size, options)

    gloo: Any = dist.ProcessGroupGloo  # its stubs know no options
    name = "gloo_" + re.sub(r"\W", "_", ip)
    dist.Backend.register_backend(name, create, devices=["cpu"])
    return name


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as wrong:  # every error of torch.distributed is one
        raise CollectiveFailed(f"{what} with the other ranks failed: {wrong}") from wrong
