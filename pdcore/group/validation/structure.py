"""Whether the parts of a spec can be a group at all: roles, dependencies, engines, vendor, router. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from pdcore.config.sizes import memory
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding, listed
from pdcore.group.flags import Flags
from pdcore.group.spec import ENGINE_ROLES, ROLES, GroupSpec, Resources
from pdcore.group.validation.subject import Subject, path_of

_ADDRESS: Final = ("host", "port")


def findings(subject: Subject) -> Iterator[Finding]:
    """Every reason against the spec's structure."""
    spec = subject.spec
    yield from _roles(spec)
    yield from _own_fields(spec)
    yield from _lora(spec)
    yield from _dependencies(spec)
    for role in subject.engines:
        yield from _engine(subject, role)
    yield from _vendor(subject)
    yield from _load_failure_policy(subject)


def _roles(spec: GroupSpec) -> Iterator[Finding]:
    if not spec.roles:
        yield Finding(
            code="roles_missing",
            path="roles",
            message="there are no roles",
            remedy="declare a prefill, a decode and a router",
        )
        return
    names = [role.name for role in spec.roles]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Finding(
                code="role_duplicate",
                path=f"roles.{name}",
                message=f"the role {name!r} is declared {names.count(name)} times",
                remedy="declare each role once and set its replicas",
                values={"role": name, "times": names.count(name)},
            )
        if name not in ROLES:
            yield Finding(
                code="role_unknown",
                path=f"roles.{name}",
                message=f"there is no role {name!r}",
                remedy=f"use {', '.join(ROLES)}",
                values={"given": name, "supported": listed(ROLES)},
            )
    for name in ENGINE_ROLES:
        if name not in names:
            yield _missing(name, "a request needs both a prefill and a decode")
    if "router" not in names:
        yield _missing("router", "nobody else takes requests from clients")


def _missing(name: str, why: str) -> Finding:
    return Finding(
        code="router_missing" if name == "router" else "role_missing",
        path="roles",
        message=f"there is no {name}: {why}",
        remedy=f"add a role named {name} with 1 or more replicas",
        values={"role": name, "replicas": 0},
    )


def _own_fields(spec: GroupSpec) -> Iterator[Finding]:
    for role in spec.roles:
        place = f"roles.{role.name}"
        if role.resources is not None and role.name in ENGINE_ROLES:
            yield Finding(
                code="resources_on_engine_role",
                path=f"{place}.resources",
                message="what an engine needs follows from the model and its parallelism",
                remedy="remove resources; only a router has them",
            )
        elif role.resources is not None:
            yield from _positive(role.resources, f"{place}.resources")
        if role.protocol is not None and (role.name != "router" or spec.mode != "custom"):
            yield Finding(
                code="protocol_not_custom",
                path=f"{place}.protocol",
                message=f"the handshake is decided by mode {spec.mode}",
                remedy="remove protocol; only the router of mode custom has it",
                values={"given": role.protocol, "mode": spec.mode},
            )


def _positive(resources: Resources, place: str) -> Iterator[Finding]:
    if resources.cpu is not None and resources.cpu <= 0:
        yield Finding(
            code="resources_not_positive",
            path=f"{place}.cpu",
            message=f"{resources.cpu:g} is not above 0",
            remedy="write a number of cores like 2",
            values={"given": resources.cpu},
        )
    if resources.memory is not None:
        try:
            memory(resources.memory)
        except ValueError as wrong:
            yield Finding(
                code="resources_not_positive",
                path=f"{place}.memory",
                message=str(wrong),
                remedy="write an amount like 2Gi",
                values={"given": resources.memory},
            )


def _lora(spec: GroupSpec) -> Iterator[Finding]:
    if spec.lora_list:
        yield Finding(
            code="lora_with_disaggregation",
            path="lora_list",
            message="routers know members by the base model's name, so no request for an adapter would find one",
            remedy="remove lora_list, or serve the adapters without disaggregation",
            values={"given": listed(spec.lora_list)},
        )
    for role in spec.roles:
        if role.lora_list:
            yield Finding(
                code="lora_on_role",
                path=f"roles.{role.name}.lora_list",
                message="an adapter of one role never resolves through the router",
                remedy="remove lora_list",
                values={"given": listed(role.lora_list)},
            )


def _dependencies(spec: GroupSpec) -> Iterator[Finding]:
    names = {role.name for role in spec.roles}
    graph: dict[str, set[str]] = {}
    for role in spec.roles:
        place = f"roles.{role.name}.dependencies"
        for other in role.dependencies or ():
            if other == role.name:
                yield Finding(
                    code="dependency_self",
                    path=place,
                    message=f"{role.name} waits for itself",
                    remedy=f"remove {other} from it",
                    values={"role": role.name},
                )
            elif other not in names:
                yield Finding(
                    code="dependency_unknown",
                    path=place,
                    message=f"there is no role {other!r} to wait for",
                    remedy=f"name one of {', '.join(sorted(names - {role.name}))}",
                    values={"role": role.name, "dependency": other},
                )
            else:
                graph.setdefault(role.name, set()).add(other)
    yield from _cycle(spec, graph)


def _cycle(spec: GroupSpec, graph: Mapping[str, set[str]]) -> Iterator[Finding]:
    """A router that says nothing waits for all others, so they cannot wait for it."""
    waits = {name: set(others) for name, others in graph.items()}
    router = spec.role("router")
    if router is not None and router.dependencies is None:
        waits["router"] = {role.name for role in spec.roles} - {"router"}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as cycle:
        chain = [str(name) for name in reversed(cycle.args[1])]
        yield Finding(
            code="dependency_cycle",
            path="roles",
            message=f"roles wait for each other: {' waits for '.join(chain)}",
            remedy="remove one of these dependencies",
            values={"cycle": listed(chain)},
        )


def _engine(subject: Subject, role: EffectiveRole) -> Iterator[Finding]:
    mode = subject.mode
    if role.backend not in mode.backends:
        yield Finding(
            code="backend_not_in_mode",
            path=path_of(role, "backend"),
            message=f"mode {mode.name} configures {' or '.join(mode.backends)}, not {role.backend}",
            remedy="choose a mode for that engine, or mode custom to bring connector and ports yourself",
            values={"given": role.backend, "mode": mode.name, "supported": listed(mode.backends)},
        )
    yield from _owned_flags(subject, role)
    if role.backend == "custom" and role.run_command is None:
        yield Finding(
            code="command_missing",
            path=f"roles.{role.name}.run_command",
            message="nobody knows how to start an engine of backend custom",
            remedy="write run_command, here or for the whole group",
        )


def _owned_flags(subject: Subject, role: EffectiveRole) -> Iterator[Finding]:
    """Flags come last on a command line and would win: over the address that others know, and over the mode's own."""
    recipe = next((one for name, one in subject.mode.roles.items() if name == role.name), None)
    if recipe is None or role.backend == "pdcore" or role.run_command is not None:
        return
    own = {flag.name for flag in Flags.of(recipe.args).flags}
    for flag in dict.fromkeys(role.flags.flags):
        if flag.name in _ADDRESS or flag.name in own:
            yield Finding(
                code="engine_flag_owned",
                path=path_of(role, "backend_parameters"),
                message=f"--{flag.name} is set for every member"
                f"{f' by mode {subject.mode.name}' if flag.name in own else ', and nobody would find it elsewhere'}",
                remedy="remove it",
                values={"role": role.name, "flag": f"--{flag.name}", "given": flag.value},
            )


def _vendor(subject: Subject) -> Iterator[Finding]:
    spec, mode, known = subject.spec, subject.mode, subject.vendors
    possible = frozenset(mode.vendors)
    if spec.vendor is not None and possible and spec.vendor not in possible:
        yield Finding(
            code="vendor_not_in_mode",
            path="disaggregation.vendor",
            message=f"mode {mode.name} is for {' or '.join(mode.vendors)}, not {spec.vendor}",
            remedy="choose a mode for that vendor (pdcore modes list), or mode custom",
            values={"given": spec.vendor, "mode": mode.name, "supported": listed(mode.vendors)},
        )
        return
    wanted = frozenset({spec.vendor}) if spec.vendor is not None else possible
    if known is None or not known or not wanted:
        return
    if not wanted & known:
        yield Finding(
            code="vendor_not_in_cluster",
            path="disaggregation.vendor" if spec.vendor else "disaggregation.mode",
            message=f"cannot run here: it needs {' or '.join(sorted(wanted))}, the cluster has {', '.join(sorted(known))}",
            remedy="choose a mode for what the cluster has (pdcore modes resolve), or another cluster; "
            "write disaggregation.vendor if such machines are yet to join",
            values={"wanted": listed(sorted(wanted)), "cluster": listed(sorted(known))},
        )


def _load_failure_policy(subject: Subject) -> Iterator[Finding]:
    spec, mode = subject.spec, subject.mode
    if spec.kv_load_failure_policy == "fail" or mode.takes_load_failure_policy:
        return
    own = " inside your own --kv-transfer-config" if mode.name == "custom" else ""
    yield Finding(
        code="load_failure_policy_unsupported",
        path="disaggregation.kv_load_failure_policy",
        message=f"the connector of mode {mode.name} has no such setting",
        remedy=f"set it{own}, and fail here" if own else "write fail, or choose vllm-nixl or vllm-mooncake",
        values={"given": spec.kv_load_failure_policy, "mode": mode.name},
    )
