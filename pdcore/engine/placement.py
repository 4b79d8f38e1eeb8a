"""Which ranks run on which machine, and which machines make up an instance. Pure.

Ranks are numbered with tp running fastest and dp slowest, and fill the machines in that order, so that a DP group lies
on as few of them as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pdcore.errors import ConfigError
from pdcore.topology.keys import RankPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """An instance's layout. A DP group is the ``cp * tp`` ranks of one dp."""

    dp: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def world(self) -> int:
        """Ranks of the instance."""
        return self.dp * self.cp * self.tp

    @property
    def group(self) -> int:
        """Ranks of a DP group."""
        return self.cp * self.tp

    def positions(self) -> tuple[RankPosition, ...]:
        """Every rank, in order of its number."""
        return tuple(map(RankPosition._make, product(range(self.dp), range(self.cp), range(self.tp))))

    def number(self, position: RankPosition) -> int:
        """The rank's number in the instance, 0 ... ``world`` - 1."""
        return (position.dp * self.cp + position.cp) * self.tp + position.tp

    def __str__(self) -> str:
        return f"dp {self.dp} x cp {self.cp} x tp {self.tp}"


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """The machines of one instance, the leader's first."""

    ips: tuple[str, ...]

    @property
    def leader(self) -> str:
        """Where HTTP is answered."""
        return self.ips[0]


def plan_instances(ips: Sequence[str], world_size: int, devices_per_node: int) -> tuple[InstancePlan, ...]:
    """Divide the machines of one role into instances of ``world_size`` ranks. ConfigError when that does not work out."""
    machines = machines_of(world_size, devices_per_node)
    if not ips or len(ips) % machines:
        raise ConfigError(
            f"{len(ips)} machines cannot be divided into instances of {machines}"
            f" (world_size {world_size}, devices_per_node {devices_per_node})"
        )
    return tuple(InstancePlan(tuple(ips[first : first + machines])) for first in range(0, len(ips), machines))


def machines_of(world_size: int, devices_per_node: int) -> int:
    """How many machines so many ranks fill. ConfigError when the last one would not be full."""
    if world_size > devices_per_node and world_size % devices_per_node:
        raise ConfigError(f"world_size {world_size} does not divide by devices_per_node {devices_per_node}")
    return max(1, world_size // devices_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An instance on ``nnodes`` machines of ``per_node`` ranks each."""

    sizes: Sizes
    nnodes: int
    per_node: int

    def on_node(self, node: int) -> tuple[RankPosition, ...]:
        """The ranks of one machine, in order of their devices there."""
        return self.sizes.positions()[node * self.per_node : (node + 1) * self.per_node]

    def node_of(self, position: RankPosition) -> int:
        """The machine of a rank."""
        return self.sizes.number(position) // self.per_node

    def device_of(self, position: RankPosition) -> int:
        """The rank's device on its machine, from 0."""
        return self.sizes.number(position) % self.per_node


def place(sizes: Sizes, nnodes: int, devices_per_node: int | None) -> Placement:
    """Put the instance on its machines. ConfigError naming fields and values when ranks and machines do not fit."""
    layout = f"{sizes.world} ranks ({sizes})"
    if devices_per_node is None:
        if sizes.world % nnodes:
            raise ConfigError(f"--nnodes / PDCORE_NNODES: {layout} do not divide by {nnodes} machines")
        return Placement(sizes=sizes, nnodes=nnodes, per_node=sizes.world // nnodes)
    shown = f"--devices-per-node / PDCORE_DEVICES_PER_NODE: {layout} on machines of {devices_per_node}"
    if sizes.world > devices_per_node and sizes.world % devices_per_node:
        raise ConfigError(f"{shown} do not fill the last one")
    needed = machines_of(sizes.world, devices_per_node)
    if needed != nnodes:
        raise ConfigError(f"{shown} need --nnodes {needed}, not {nnodes}")
    return Placement(sizes=sizes, nnodes=nnodes, per_node=devices_per_node)
