"""Whether the router can be started and found, and what may not be said to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.config.router import ROUTER
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.flags import Flag, Flags
from pdcore.group.modes.mode import CUSTOM, RouterRecipe
from pdcore.group.validation import taken
from pdcore.group.validation.subject import Subject, path_of

_PEERS: Final = frozenset({"prefill", "decode", "unified", "prefill-addrs", "decode-addrs", "unified-addrs"})
_ADDRESSES: Final = frozenset(
    {"host", "port", "admin-host", "admin-port", "prometheus-host", "prometheus-port", "advertise-ip"}
)
_BY_FLAG: Final = {flag.lstrip("-"): setting for setting in ROUTER for flag in setting.flags}


def findings(subject: Subject) -> Iterator[Finding]:
    """Every reason against the router."""
    router = subject.roles.get("router")
    if router is None:
        return
    if subject.mode.name == CUSTOM:
        yield from _custom(subject, router)
    if router.run_command is None or router.protocol is not None:
        yield from taken.refused_variables(
            "router", router.env or {}, ROUTER, path=path_of(router, "env"), role=router.name
        )
        yield from _flags(router, subject.router)


def is_native(router: EffectiveRole) -> bool:
    """Whether the router is pdcore's own: unless the user wrote a command for it."""
    return router.protocol is not None or router.run_command is None


def _custom(subject: Subject, router: EffectiveRole) -> Iterator[Finding]:
    own = subject.spec.role("router")
    written = None if own is None else own.run_command
    if router.protocol is None and router.run_command is None:
        yield Finding(
            code="custom_router_undecided",
            path="roles.router",
            message="mode custom does not know the router",
            remedy="write protocol, for pdcore's own router speaking that handshake, or run_command for yours",
        )
    elif router.protocol is not None and written is not None:
        yield Finding(
            code="custom_router_twice",
            path="roles.router",
            message="it has both a protocol, for pdcore's own router, and a run_command, for yours",
            remedy="remove one of the two",
            values={"protocol": router.protocol, "run_command": written},
        )


def _flags(router: EffectiveRole, recipe: RouterRecipe | None) -> Iterator[Finding]:
    owned = frozenset(_name(flag) for flag in (recipe.owned_args if recipe is not None else ()))
    adjustable = ", ".join(tunable.flag for tunable in recipe.tunable_args) if recipe is not None else ""
    remedy = f"remove it; adjustable here: {adjustable}" if adjustable else "remove it"
    for flag in dict.fromkeys(Flags.of(router.backend_parameters).flags):
        if flag.name in _PEERS:
            code, why = "router_peer_flag", "which members it asks is set for it, and this would add to them"
        elif flag.name in _ADDRESSES:
            code, why = (
                "router_address_flag",
                "where it answers is set for it, and nobody would find it elsewhere",
            )
        elif flag.name in owned:
            code, why = "router_owned_flag", "it is set for it"
        else:
            yield from _startable(flag)
            continue
        yield Finding(
            code=code,
            path="roles.router.backend_parameters",
            message=f"--{flag.name} cannot be given to the router: {why}",
            remedy=remedy,
            values={"flag": f"--{flag.name}", "given": flag.value},
        )


def _startable(flag: Flag) -> Iterator[Finding]:
    """What pdcore's router would refuse at its start."""
    setting, path = _BY_FLAG.get(flag.name), "roles.router.backend_parameters"
    if setting is None:
        yield taken.unknown(
            "router", flag, (known.name for known in ROUTER), code="router_flag_unknown", path=path
        )
    else:
        yield from taken.refused("router", flag, setting, code="router_flag_refused", path=path)


def _name(flag: str) -> str:
    return flag.lstrip("-").lower().replace("_", "-")
