"""Which machine of which instance this is, from the lists on the command line of ``pdcore serve``. Pure.

``--prefill-ips`` and ``--decode-ips`` name all machines of a role. ``--ips`` has either a role's machines alone or both
roles' one after the other; then ``--master-node``, the first machine of the role, says where the role begins, and
``--node-index`` may count within the role or within the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdcore.engine.placement import InstancePlan, machines_of, plan_instances
from pdcore.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """What the command line says of machines; an empty list was not given. ``role`` is prefill, decode or unified."""

    role: str
    ips: tuple[str, ...] = ()
    prefill_ips: tuple[str, ...] = ()
    decode_ips: tuple[str, ...] = ()
    node_index: int | None = None
    master_node: str | None = None
    bootstrap_host: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is any list to find this machine in."""
        return bool(self.ips or self.own)

    @property
    def own(self) -> tuple[str, ...]:
        """All machines of our role."""
        return {"prefill": self.prefill_ips, "decode": self.decode_ips}.get(self.role, ())

    @property
    def other(self) -> tuple[str, ...]:
        """All machines of the other role."""
        return {"prefill": self.decode_ips, "decode": self.prefill_ips}.get(self.role, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine: its address, its place in the instance, and the address of the instance's leader."""

    ip: str
    leader: str
    node_rank: int
    nnodes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The role's machines, how many others stand before them in ``--ips``, and whether the role's end is known."""

    ips: tuple[str, ...]
    before: int = 0
    ends: bool = True


def this_machine(lists: Lists, world_size: int, devices_per_node: int) -> Machine:
    """Find this machine in the lists. ConfigError naming flags and values when they do not say, or contradict."""
    part = _part(lists)
    instances = _instances(part, world_size, devices_per_node)
    machines = sum(len(instance.ips) for instance in instances)
    found = [_at(instances, index) for index in _indices(lists, part, machines)]
    chosen = [machine for machine in found if lists.bootstrap_host in (None, machine.ip, machine.leader)]
    if not chosen:
        raise ConfigError(
            f"--bootstrap-host: {lists.bootstrap_host} is neither this machine ({_either(found)}, by --node-index"
            f" {lists.node_index}) nor its instance's leader"
        )
    if len(set(chosen)) > 1:
        raise ConfigError(
            f"--node-index: {lists.node_index} is {chosen[0].ip} within the role and {chosen[1].ip} within --ips;"
            " name this machine with --bootstrap-host"
        )
    return chosen[0]


def _instances(part: _Part, world_size: int, devices_per_node: int) -> tuple[InstancePlan, ...]:
    """The role's instances; where its end is not known, what no longer makes a whole one is not the role's."""
    left_over = 0 if part.ends else len(part.ips) % machines_of(world_size, devices_per_node)
    whole = part.ips[: len(part.ips) - left_over]
    return plan_instances(whole or part.ips, world_size, devices_per_node)


def _at(instances: Sequence[InstancePlan], index: int) -> Machine:
    size = len(instances[0].ips)
    instance, node_rank = instances[index // size], index % size
    return Machine(ip=instance.ips[node_rank], leader=instance.leader, node_rank=node_rank, nnodes=size)


def _indices(lists: Lists, part: _Part, machines: int) -> list[int]:
    """Where in the role this machine may be meant to be; at least one place."""
    if lists.node_index is None:
        if machines == 1:
            return [0]
        raise ConfigError(f"--node-index is missing: which of {', '.join(part.ips)} this machine is")
    found = [index for index in (lists.node_index, lists.node_index - part.before) if 0 <= index < machines]
    if not found:
        raise ConfigError(
            f"--node-index: {lists.node_index} is not within the {machines} machines of whole {lists.role} instances"
            f" ({', '.join(part.ips)})"
        )
    return found


def _part(lists: Lists) -> _Part:
    own, other, ips = lists.own, lists.other, lists.ips
    merged = (*lists.prefill_ips, *lists.decode_ips)
    if not ips or ips == own:
        part = _Part(own)
    elif own and other and ips == merged:
        part = _Part(own, before=0 if lists.role == "prefill" else len(other))
    elif own:
        part = _Part(_within(ips, own, lists.role))
    elif other:
        part = _without(ips, other, lists.role)
    else:
        part = _from_master(lists)
    if lists.master_node is not None and lists.master_node not in part.ips:
        raise ConfigError(
            f"--master-node: {lists.master_node} is none of the {lists.role} machines {', '.join(part.ips)}"
        )
    return part


def _within(ips: tuple[str, ...], own: tuple[str, ...], role: str) -> tuple[str, ...]:
    """``--ips`` as the machines of one instance among all of the role."""
    strange = [ip for ip in ips if ip not in own]
    if strange:
        raise ConfigError(f"--ips: {', '.join(strange)} not in --{role}-ips {', '.join(own)}")
    return ips


def _without(ips: tuple[str, ...], other: tuple[str, ...], role: str) -> _Part:
    """``--ips`` without the other role's machines, which stand behind prefill's or before decode's."""
    count = len(other)
    if role == "prefill" and ips[-count:] == other:
        return _Part(ips[:-count])
    if role == "decode" and ips[:count] == other:
        return _Part(ips[count:], before=count)
    return _Part(ips)


def _from_master(lists: Lists) -> _Part:
    """``--ips`` from the role's first machine on; what stands behind the role cannot be told."""
    if lists.master_node is None or lists.master_node not in lists.ips:
        return _Part(lists.ips, ends=False)
    before = lists.ips.index(lists.master_node)
    return _Part(lists.ips[before:], before=before, ends=False)


def _either(machines: Sequence[Machine]) -> str:
    return " or ".join(dict.fromkeys(machine.ip for machine in machines))
