"""What must hold in the catalogue beside its types; a release whose catalogue breaks a rule does not start. Pure.

Each rule yields the end of a sentence that begins with the mode or router it is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from pdcore.group.modes.mode import CUSTOM, NATIVE, Band, Catalogue, Channel, Mode, RoleRecipe, RouterRecipe
from pdcore.group.modes.placeholders import malformed_in, names_in
from pdcore.group.modes.versions import floor_of
from pdcore.group.spec import MODES
from pdcore.topology.records import Json

Problems = Iterator[str]
Written = dict[Channel, list[Json]]


def problems(catalogue: Catalogue) -> tuple[str, ...]:
    """Every rule that ``catalogue`` breaks, as sentences; none for one that may be used."""
    return tuple(problem for rule in RULES for problem in rule(catalogue))


def check_names(catalogue: Catalogue) -> Problems:
    """Every mode that a spec can name is there once."""
    names = Counter(mode.name for mode in catalogue.modes)
    for name in MODES:
        if names[name] != 1:
            yield f"mode {name} is there {names[name]} times, not once"


def check_leases(catalogue: Catalogue) -> Problems:
    """Whoever has a lease has transfer metrics, and the other way round."""
    for connector in catalogue.leases.keys() - catalogue.transfer_metrics.keys():
        yield f"lease {connector} has no transfer metrics"
    for connector in catalogue.transfer_metrics.keys() - catalogue.leases.keys():
        yield f"transfer metrics {connector} have no lease"
    for mode in catalogue.modes:
        if mode.lease is not None and mode.lease not in catalogue.leases:
            yield f"mode {mode.name} names the lease {mode.lease}, which is not there"


def check_expired_metrics(catalogue: Catalogue) -> Problems:
    """What a mode says of expired KV is what its lease says."""
    for mode in catalogue.modes:
        lease = None if mode.lease is None else catalogue.leases.get(mode.lease)
        known = None if lease is None else lease.expired_metric
        if mode.capabilities.kv_expired_metric != known:
            said = mode.capabilities.kv_expired_metric
            yield f"mode {mode.name} says kv_expired_metric {said}, its lease {known}"


def check_injection(catalogue: Catalogue) -> Problems:
    """A mode that adds something is for named accelerators and a named transport; ``custom`` is for none."""
    for mode in catalogue.modes:
        if mode.injects and not (mode.vendors and mode.transport):
            yield f"mode {mode.name} adds to engines and names no vendors or no transport"
        if mode.name == CUSTOM and (mode.vendors or mode.transport or mode.injects):
            yield f"mode {mode.name} may name no vendors and no transport, and may add nothing"


def check_managed_routers(catalogue: Catalogue) -> Problems:
    """A managed router says what to start and how it is reached."""
    for name, router in catalogue.routers.items():
        if not router.entrypoint or not router.connection_args:
            yield f"router {name} has no entrypoint or no connection_args"
    for mode in catalogue.modes:
        if mode.router is not None and mode.router not in catalogue.routers:
            yield f"mode {mode.name} names the router {mode.router}, which is not there"


def check_planes(catalogue: Catalogue) -> Problems:
    """Only who names an interface to an engine can want the management network's."""
    for mode in catalogue.modes:
        if mode.nic_plane == "control" and "net_device" not in _names(mode):
            yield f"mode {mode.name} is on the control plane and uses no {{{{net_device}}}}"


def check_bands(catalogue: Catalogue) -> Problems:
    """A band is used where it says that it is, and none is used that is not there."""
    for mode in catalogue.modes:
        for role, recipe in mode.roles.items():
            for problem in _band_problems(recipe.bands, _channels(recipe)):
                yield f"mode {mode.name}, {role}: {problem}"
    for name, router in catalogue.routers.items():
        words: Written = {"args": [*router.connection_args, *router.args], "env": [], "files": []}
        for problem in _band_problems(router.bands, words):
            yield f"router {name}: {problem}"


def check_peers(catalogue: Catalogue) -> Problems:
    """What a router is told of a member names bands that such a member has."""
    for mode in catalogue.modes:
        router = catalogue.routers.get(mode.router or "")
        if router is None:
            continue
        for band in sorted(_peer_bands([*router.peers.get("prefill", ())])):
            if band not in {one.name for one in mode.bands_of("prefill")}:
                yield f"mode {mode.name}: its router is told prefill's band {band}, which it has not"
        known = {one.name for role in mode.roles.values() for one in role.bands}
        for band in sorted(_peer_bands(_bodies(router)) - known):
            yield f"mode {mode.name}: the membership body names the band {band}, which no member has"


def check_dynamic(catalogue: Catalogue) -> Problems:
    """``dynamic`` needs an interface to read and add members, and the flags that open it."""
    for mode in catalogue.modes:
        if mode.membership != "dynamic":
            continue
        router = catalogue.routers.get(mode.router or "")
        api = None if router is None else router.membership
        if router is None or api is None or api.add is None:
            yield f"mode {mode.name} is dynamic, and its router has no way to read and add members"
        elif missing := sorted(set(api.required_args) - {*router.connection_args, *router.args}):
            yield f"mode {mode.name} is dynamic, and its router is started without {', '.join(missing)}"


def check_restart(catalogue: Catalogue) -> Problems:
    """Who is started again to learn of members must be ours to start."""
    for mode in catalogue.modes:
        if mode.membership == "restart" and mode.router is None:
            yield f"mode {mode.name} restarts a router that it does not manage"
        if mode.membership == "keyspace" and mode.name != NATIVE:
            yield f"mode {mode.name} has engines that are not in the keyspace"


def check_tunables(catalogue: Catalogue) -> Problems:
    """A flag is offered once, and never one that is owned."""
    for name, router in catalogue.routers.items():
        flags = Counter(one.flag for one in router.tunable_args)
        for flag in sorted(flag for flag, times in flags.items() if times > 1):
            yield f"router {name} offers {flag} twice"
        for flag in sorted(flags.keys() & set(router.owned_args)):
            yield f"router {name} offers {flag} and owns it"


def check_siblings(catalogue: Catalogue) -> Problems:
    """Routers of siblings are the same but for what may differ."""
    for pair in catalogue.siblings:
        one, other = (_router_document(catalogue, name) for name in pair.modes)
        for field in sorted(one.keys() | other.keys()):
            if field not in pair.may_differ and one.get(field) != other.get(field):
                yield f"the routers of {' and '.join(pair.modes)} differ in {field}"


def check_placeholders(catalogue: Catalogue) -> Problems:
    """Placeholders are names with dots and without blanks."""
    document = msgspec.to_builtins(catalogue)
    for found in dict.fromkeys(malformed_in(document)):
        yield f"{found} is not a placeholder: names with dots and without blanks"


def check_ranges(catalogue: Catalogue) -> Problems:
    """Ranges can be read, and the last tensor parallel rule holds for every version."""
    for mode in catalogue.modes:
        ranges = [mode.engine_versions, *(rule.versions for rule in mode.tp_rules)]
        for written in filter(None, ranges):
            try:
                floor_of(written)
            except ValueError as wrong:
                yield f"mode {mode.name}: {wrong}"
        if not mode.tp_rules or mode.tp_rules[-1].versions is not None:
            yield f"mode {mode.name} has no tensor parallel rule for versions that nobody knows"


RULES: Final[tuple[Callable[[Catalogue], Problems], ...]] = (
    check_names,
    check_leases,
    check_expired_metrics,
    check_injection,
    check_managed_routers,
    check_planes,
    check_bands,
    check_peers,
    check_dynamic,
    check_restart,
    check_tunables,
    check_siblings,
    check_placeholders,
    check_ranges,
)


def _band_problems(bands: tuple[Band, ...], written: Written) -> Problems:
    declared = {one.name: one.channel for one in bands}
    if len(declared) != len(bands):
        yield "a band is declared twice"
    used = {channel: {_band(name) for name in names_in(words)} for channel, words in written.items()}
    for band, channel in declared.items():
        if band not in used[channel]:
            yield f"the band {band} is declared for {channel} and not used there"
    for band in sorted(set().union(*used.values()) - declared.keys() - {""}):
        yield f"the band {band} is used and not declared"


def _band(name: str) -> str:
    head, _, rest = name.partition(".")
    return rest.partition(".")[0] if head == "ports" else ""


def _channels(recipe: RoleRecipe) -> Written:
    return {
        "args": [*recipe.args, *([recipe.descriptor] if recipe.descriptor else [])],
        "env": list(recipe.env.values()),
        "files": [one.content for one in recipe.files],
    }


def _peer_bands(words: list[Json]) -> set[str]:
    begin = "peer.ports."
    return {name.removeprefix(begin) for name in names_in(words) if name.startswith(begin)}


def _bodies(router: RouterRecipe) -> list[Json]:
    api = router.membership
    if api is None:
        return []
    calls = (one for one in (api.probe, api.add, api.remove) if one is not None)
    return [text for one in calls for text in (one.path, *one.body.values())]


def _names(mode: Mode) -> set[str]:
    return {
        name
        for recipe in mode.roles.values()
        for words in _channels(recipe).values()
        for name in names_in(words)
    }


def _router_document(catalogue: Catalogue, name: str) -> dict[str, object]:
    router = next(
        (catalogue.routers.get(one.router or "") for one in catalogue.modes if one.name == name), None
    )
    return {} if router is None else msgspec.structs.asdict(router)
